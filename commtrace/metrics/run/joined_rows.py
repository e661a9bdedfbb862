"""The rows of ``collectives`` with what matching found of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import NULL, Bool, Int64, integers
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.waits import OPERATIONS, WAITS, matched
from commtrace.table import Column, Table
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "JOINED_ROWS",
    "joined_messages",
    "joined_rows",
    "operation_of",
    "paired",
    "several_ranks",
]

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
    ),
)


def several_ranks(run: Measures) -> None:
    """Raises CannotLook where there is nobody to compare with."""
    if len(run.ranks) < 2:
        raise CannotLook("needs several ranks: in one, waiting is not separable from transfer")


def joined_rows(run: Measures, which: Bool | None = None) -> pd.DataFrame:
    """The rows of ``collectives`` with their waits and operations: JOINED_ROWS.

    ``which`` is a flag for each row, for only these: made anew each time, all take much memory.
    Times are on the run's clock, but for ``start_ns``. CannotLook for one rank.
    """
    several_ranks(run)
    timed = integers(matched(run).waits["arrival_ns"]) != NULL
    mine = np.flatnonzero(timed if which is None else timed & which)
    return _joined(run, mine) if mine.size else _none(run)


@measure
def _none(run: Measures) -> pd.DataFrame:
    return _joined(run, np.empty(0, dtype=np.int64))


def _joined(run: Measures, mine: Int64) -> pd.DataFrame:
    found, table = matched(run), run.collectives
    number, arrival, rank = (
        integers(found.waits[name]) for name in ("operation", "arrival_ns", "rank")
    )
    mine = mine[np.lexsort((number[mine], arrival[mine], rank[mine]))]
    of = operation_of(run)[mine]
    rows = pd.DataFrame(
        {
            **{name: found.waits[name].array[mine] for name in found.waits.columns},
            **{name: table[name].array[mine] for name in _OWN},
            **{name: found.operations[name].array[of] for name in _OF_OPERATION[1:]},
        }
    )
    late = arrival[mine] - integers(table["start_ns"])[mine]
    rows = rows.assign(
        arrival_ns=arrival[mine],
        end_ns=rows["end_ns"].astype("int64"),
        launch_ns=rows["launch_ns"].astype("float64") + late,
        wait_ns=rows["wait_ns"].fillna(0).astype("int64"),
    )
    return rows.assign(pair=_pair(rows))


def operation_of(run: Measures) -> Int64:
    """The row of ``operations`` that each row of ``collectives`` is of."""
    found = matched(run)
    numbers = found.operations["operation"].to_numpy()
    return np.searchsorted(numbers, found.waits["operation"].to_numpy())


def joined_messages(run: Measures) -> pd.DataFrame:
    """Those of sends and recvs."""
    return joined_rows(run, run.collectives["op"].isin(POINT_TO_POINT).to_numpy())


def paired(run: Measures) -> None:
    """Raises CannotLook where there are messages, but none with both of its sides."""
    rows = joined_messages(run)
    if len(rows) and not (rows["present"] > 1).any():
        raise CannotLook("needs messages of which both sides are known: none is")


def _pair(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """A number for the two ranks of a send or recv; -1 for other operations."""
    peer = rows["peer"].fillna(-1).astype("int64")
    low, high = np.minimum(rows["rank"], peer), np.maximum(rows["rank"], peer)
    return np.where(peer < 0, -1, low * 2**31 + high)
