"""The rows of ``collectives`` with what matching found of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.waits import OPERATIONS, WAITS, matched
from commtrace.table import Column, Table
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["JOINED_ROWS", "joined_rows", "several_ranks"]

_OWN = ("op", "device", "stream", "step", "start_ns", "duration_ns", "launch_ns", "peer", "root")
_OF_OPERATION = (
    *("operation", "communicator", "present", "last_rank", "last_arrival_ns"),
    *("skew_ns", "size_bytes"),
)

JOINED_ROWS = Table(
    "joined_rows",
    "one row of `collectives` with a known time and its operation, by rank and arrival",
    (
        *WAITS.columns,
        *COLLECTIVES.only(_OWN),
        *OPERATIONS.only(_OF_OPERATION[1:]),
        Column("pair", "int64", "A number for the two ranks of a send or recv; else -1."),
        Column(
            "inherited_ns",
            "float64",
            "Lateness that is not its own: what it waited elsewhere since its last operation of "
            "this communicator, and was let out of that later than others.",
            "ns",
        ),
    ),
)


def several_ranks(run: Measures) -> None:
    """Raises CannotLook where there is nobody to compare with."""
    if len(run.ranks) < 2:
        raise CannotLook("needs several ranks: in one, waiting is not separable from transfer")


@measure
def joined_rows(run: Measures) -> pd.DataFrame:
    """The rows of ``collectives`` with their waits and operations: JOINED_ROWS.

    Times are on the run's clock, but for ``start_ns``. CannotLook for one rank.
    """
    several_ranks(run)
    found = matched(run)
    rows = found.waits.assign(**{name: run.collectives[name].array for name in _OWN})
    rows = rows[rows["arrival_ns"].notna() & rows["rank"].notna()]
    rows = rows.merge(found.operations[[*_OF_OPERATION]], on="operation")
    arrival = rows["arrival_ns"].astype("int64")
    rows = rows.assign(
        arrival_ns=arrival,
        end_ns=rows["end_ns"].astype("int64"),
        launch_ns=rows["launch_ns"].astype("float64") + (arrival - rows["start_ns"]),
        wait_ns=rows["wait_ns"].fillna(0).astype("int64"),
    ).sort_values(["rank", "arrival_ns", "operation"], kind="stable", ignore_index=True)
    rows = rows.assign(pair=_pair(rows))
    return rows.assign(inherited_ns=_inherited_ns(rows))


def _pair(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """A number for the two ranks of a send or recv; -1 for other operations."""
    peer = rows["peer"].fillna(-1).astype("int64")
    low, high = np.minimum(rows["rank"], peer), np.maximum(rows["rank"], peer)
    return np.where(peer < 0, -1, low * 2**31 + high)


def _inherited_ns(rows: pd.DataFrame) -> pd.Series[Any]:
    """What a rank waited elsewhere since its last such operation, and was let out late of it.

    Such are those of its communicator; of a send or recv those of the same two ranks.
    """
    waited = rows.groupby("rank")["wait_ns"].cumsum()
    since = rows[["rank", "communicator", "pair", "end_ns"]].assign(through=waited)
    previous = since.groupby(["rank", "communicator", "pair"], observed=True, dropna=False).shift()
    elsewhere = waited - rows["wait_ns"] - previous["through"]
    left = previous["end_ns"].clip(upper=rows["arrival_ns"])
    let_out = left - left.groupby(rows["operation"]).transform("median")
    let_out = let_out.where(rows["peer"].isna(), 0)
    return elsewhere.clip(lower=0).fillna(0) + let_out.clip(lower=0).fillna(0)
