"""Operations whose effect another one right beside them has anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import Bool, codes, integers
from commtrace.comms import SYNCHRONISING, members
from commtrace.metrics.run.used_between import used_between

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["needless_barriers", "reduced_twice"]

_ALWAYS = 0.9
_IN_TURN = ["rank", "order", "start_ns"]
_NEEDED = [  # of a second copy of a whole run's rows
    *(*_IN_TURN, "duration_ns", "end_ns", "launch_ns", "device", "stream", "operation"),
    *("communicator", "op", "dtype", "size_bytes", "root"),
]


def needless_barriers(rows: pd.DataFrame) -> pd.DataFrame:
    """Barriers right before or after a collective of their group that all wait in as well.

    And those behind each other there. ``rows`` are ``sequences`` with their barriers, and so is
    what is returned.
    """
    is_barrier = (rows["op"] == "barrier").to_numpy()
    if not is_barrier.any():
        return rows.iloc[:0]
    holds = rows["op"].isin(SYNCHRONISING) & ~is_barrier
    beside = np.zeros(len(rows), np.bool_)
    for by in (1, -1):
        near = holds.shift(by, fill_value=False) & (
            rows["sequence"] == rows["sequence"].shift(by, fill_value=-1)
        )
        beside = beside | near.to_numpy()
    changes = (np.diff(is_barrier, prepend=False)) | (rows["sequence"].diff() != 0).to_numpy()
    in_a_row = pd.Series(is_barrier & beside).groupby(np.cumsum(changes)).transform("any")
    needless: pd.DataFrame = rows[is_barrier & in_a_row.to_numpy()]
    return needless


def reduced_twice(run: Measures, rows: pd.DataFrame) -> pd.DataFrame:
    """All_reduces right after one of equal bytes over a group that all their ranks were in.

    Only where (nearly) each all_reduce of that size in the first group has such a second,
    and nothing in between that could have changed the values.
    """
    if rows["communicator"].nunique() < 2:
        return rows.iloc[:0]
    in_turn = np.lexsort([integers(rows[name]) for name in reversed(_IN_TURN)])
    group = pd.factorize(rows["communicator"])[0][in_turn]
    is_summed = (rows["op"] == "all_reduce").to_numpy()[in_turn]
    at = np.flatnonzero(is_summed[:-1] & (np.diff(group) != 0))
    for name in ("rank", "op", "dtype", "size_bytes"):
        first, second = (rows[name].array[in_turn[its]] for its in (at, at + 1))
        at = at[pd.Series(first == second).fillna(False).to_numpy(np.bool_)]
    at = at[_within(*(rows["communicator"].to_numpy()[in_turn[its]] for its in (at, at + 1)))]
    if not at.size:
        return rows.iloc[:0]
    rows = rows[_NEEDED].iloc[in_turn].reset_index(drop=True)
    first, second = (rows.iloc[its].reset_index(drop=True) for its in (at, at + 1))
    free = at[~used_between(run, rows, pd.concat([first, second.add_suffix("_second")], axis=1))]
    if not free.size:
        return rows.iloc[:0]
    firsts = rows.loc[rows["op"] == "all_reduce", ["communicator", "size_bytes"]]
    repeated = pd.Series(firsts.index.isin(free), firsts.index)
    kind = [firsts["communicator"], firsts["size_bytes"]]
    sure = repeated & (repeated.groupby(kind).transform("mean") >= _ALWAYS)
    return rows.loc[firsts.index[sure] + 1]


def _within(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> Bool:
    """Whether the second's group is another one, of some or all of the first's ranks."""
    names = pd.DataFrame({"larger": first, "smaller": second})
    pair = codes(names["larger"], names["smaller"])
    inside = [
        isinstance(larger, str)
        and isinstance(smaller, str)
        and larger != smaller
        and _members(smaller) <= _members(larger)
        for larger, smaller in names[~pd.Series(pair).duplicated().to_numpy()].to_numpy()
    ]
    return np.asarray(inside, dtype=np.bool_)[pair]


def _members(communicator: str) -> frozenset[object]:
    return frozenset(members(communicator) or (communicator,))
