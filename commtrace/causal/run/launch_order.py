"""The order in which a rank's host launched what its GPUs ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, before_first, codes
from commtrace.causal.rank.device_graph import NODES, DeviceGraph
from commtrace.metrics.run.run_clock import on_run
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Called", "launched_ns"]

_START = NODES.index("start")


class Called(Struct, frozen=True):
    """The calls of a rank as its host launched them in turn, until its steps were over."""

    rows: Int64
    launched_ns: Int64
    over_ns: int

    @classmethod
    def of(cls, rows: Int64, launched_ns: Int64, over_ns: int) -> Called:
        """Of rows of calls, those launched at once in the order given."""
        order = np.argsort(launched_ns, kind="stable")
        return cls(rows[order], launched_ns[order], over_ns)

    def next(self, moment: Int64) -> Int64:
        """The first that was launched at each moment or later.

        Behind the last it is the first of all, as in a circle: what is before that of any other
        step is what the rank did behind its last call of the one before. -1 when its steps were
        over.
        """
        following = np.searchsorted(self.launched_ns, moment, side="left")
        answer: Int64 = np.append(self.rows, self.rows[0])[following]
        return np.where((following == self.rows.size) & (moment > self.over_ns), -1, answer)


def launched_ns(
    run: Measures, rank: int, tables: Mapping[str, Rows], time: Int64, its: DeviceGraph
) -> tuple[Int64, Bool]:
    """When what starts at a node was launched, as far as is known; of others their time.

    And what was launched before the trace began, which is what streams run before the first of
    theirs whose launch is known: as much earlier as their device was behind its host then.
    """
    at: Int64 = time.copy()
    launched, early = np.zeros((2, time.size), dtype=np.bool_)
    for number, table in enumerate(("kernels", "copies")):
        nodes = np.flatnonzero((its.node_kind == _START) & (its.node_table == number))
        rows = tables[table].take(its.node_row[nodes])
        stream = codes(rows.coded("device").codes, rows.ints("stream"))
        known = rows.ints("launch_ns") != NULL
        at[nodes[known]] = on_run(run, rank, rows.ints("launch_ns")[known])
        launched[nodes] = known
        early[nodes] = before_first(stream, time[nodes], known)
    if early.any():
        at[early] -= max(int(time[early].max() - at[launched].min()) + 1, 0)
    return at, early
