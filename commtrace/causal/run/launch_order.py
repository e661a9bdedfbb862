"""The order in which a rank's host launched what its GPUs ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes
from commtrace.causal.rank.device_graph import NODES, DeviceGraph
from commtrace.metrics.rank.run_ahead import launched_before
from commtrace.metrics.run.run_clock import on_run
from commtrace.table import Rows, joined

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["LaunchOrder", "launched_ns"]

_START = NODES.index("start")


class LaunchOrder(Struct, frozen=True):
    """The calls of a rank as its host launched them in turn, until its steps were over."""

    rows: Int64
    launched_ns: Int64
    over_ns: int

    @classmethod
    def of(cls, rows: Int64, launched_ns: Int64, over_ns: int) -> LaunchOrder:
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
    starts = [
        np.flatnonzero((its.node_kind == _START) & (its.node_table == table)) for table in (0, 1)
    ]
    works = [
        tables[name].take(its.node_row[nodes])
        for name, nodes in zip(("kernels", "copies"), starts, strict=True)
    ]
    nodes, device = np.concatenate(starts), joined([work.coded("device") for work in works])
    launch, stream = (
        np.concatenate([work.ints(name) for work in works]) for name in ("launch_ns", "stream")
    )
    known = launch != NULL
    at[nodes[known]] = on_run(run, rank, launch[known])
    before = launched_before(codes(device.codes, stream), time[nodes], known)
    early = np.zeros(time.size, dtype=np.bool_)
    early[nodes[before]] = True
    if before.any():
        at[early] -= max(int(time[early].max() - at[nodes[known]].min()) + 1, 0)
    return at, early
