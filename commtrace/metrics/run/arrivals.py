"""The rows of ``collectives`` by operation and arrival, and what follows for each operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commtrace import matching
from commtrace.arrays import NULL, Bool, Int64, codes, distinct, most
from commtrace.comms import FROM_ROOT, POINT_TO_POINT, TO_ROOT
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.unnamed_roots import unnamed_roots
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.matching import Matched
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["TRUST", "Arrivals", "called_ns"]

TRUST = 3  # what is smaller than this many clock errors is not reported
_LATE_NS = 1_000_000  # beyond what a thread needs to run on
FOREVER = np.iinfo(np.int64).max


class Arrivals:
    """The rows of `collectives` as arrays, sorted by operation, then by arrival.

    ``starts`` is where each operation begins, ``size`` its rows, ``of`` the operation of
    each row; ``lowest`` is the row of `collectives` that stands for an operation: its
    lowest rank's, or the send. Arrays named after an operation's property have one entry
    per operation.
    """

    def __init__(self, run: Measures, found: Matched) -> None:
        table, matches = run.rows("collectives"), found.matches
        rank, op = table.ints("rank"), table.coded("op")
        end = table.ints("start_ns") + table.ints("duration_ns")
        start = called_ns(table)
        arrival, timed = found.on_run_clock(start, rank)
        number = matches.ints("operation")
        self.order = np.lexsort((arrival, number))
        self.number, self.starts = np.unique(number[self.order], return_index=True)
        self.size = np.diff(np.append(self.starts, number.size))
        self.of = np.repeat(np.arange(self.starts.size), self.size)
        self.rank, self.arrival = rank[self.order], arrival[self.order]
        self.duration, self.timed = (end - start)[self.order], timed[self.order]
        self.end = found.on_run_clock(end, rank)[0][self.order]
        speaker = np.lexsort((rank, op.being("recv"), number))
        self.lowest = speaker[np.unique(number[speaker], return_index=True)[1]]
        sends = (op.being("send") & table.coded("device").being("cpu"))[self.order]
        op = op.take(self.lowest)
        self.from_root = op.where(FROM_ROOT.__contains__)
        self.to_root = op.where(TO_ROOT.__contains__)
        self.p2p = op.where(POINT_TO_POINT.__contains__)
        self._end_as_received(sends, start[self.order], end[self.order], run)
        self.rooted = self.from_root | self.to_root
        self.root = self._named_root(table.ints("root")[self.order])
        self.complete = self.size == matches.ints("expected")[self.lowest]
        self._compare(found.clock)
        self.root = unnamed_roots(self, codes(matches.coded("communicator").take(self.lowest), op))
        self.is_root = self.rank == self.root[self.of]
        self.root_arrival = self.max(np.where(self.is_root, self.arrival, NULL))
        self.has_root = ~self.rooted | (self.root_arrival != NULL)
        on_gpu = ~table.coded("device").being("cpu")
        self.took = self._took(table.ints("stream")[self.order], on_gpu[self.order])

    def _end_as_received(
        self, sends: Bool, called_ns: Int64, noted_ns: Int64, run: Measures
    ) -> None:
        """End each send that its step does not wait for when its message is received.

        gloo notes it when its program waits for it, or lets go of it, in a later step.
        """
        received = self.max(np.where(sends, NULL, self.end))[self.of]
        late = np.flatnonzero(sends & (self.p2p & (self.size > 1))[self.of])
        late = late[self.end[late] - received[late] > _LATE_NS]
        for rank in distinct(self.rank[late]).tolist():
            steps = rows_of_rank(run, "steps", rank)
            steps = steps.take(~steps.coded("label").known)
            ends = np.sort(steps.ints("start_ns") + steps.ints("duration_ns"))
            mine = late[self.rank[late] == rank]
            called, noted = (np.searchsorted(ends, at[mine]) for at in (called_ns, noted_ns))
            mine = mine[called < noted]
            self.end[mine] = np.maximum(received[mine], self.arrival[mine])

    def _named_root(self, named: Int64) -> Int64:
        """The root of each operation; NULL where no rank names one, or ranks name several."""
        last = self.max(named)
        one = self.min(np.where(named == NULL, FOREVER, named)) == last
        return np.where(one, last, NULL)

    def _took(self, stream: Int64, on_gpu: Bool) -> Int64:
        """What each operation took once all were there.

        What a GPU sends and receives together is one kernel, done when all of it is. It starts
        when all its peers are there, and what remains is its slowest message's: each of its
        messages was done with whichever of its two kernels took less.
        """
        took: Int64 = self.max(self.end) - self.tau
        rows = np.flatnonzero(self.p2p[self.of] & on_gpu)
        kernel = codes(*(its[rows] for its in (self.rank, stream, self.arrival, self.end)))
        several = np.bincount(kernel)[kernel] > 1
        if not several.any():
            return took
        ready = most(kernel, self.tau[self.of[rows]], int(kernel.max()) + 1)
        left = self.end[rows] - ready[kernel]
        least = np.full(took.size, FOREVER)
        np.minimum.at(least, self.of[rows], np.where(left > 0, left, FOREVER))
        together = distinct(self.of[rows[several]])
        took[together] = np.where(least[together] < FOREVER, least[together], 0)
        return took

    def _compare(self, clocks: Rows) -> None:
        """When the first and the last arrived, as far as the clocks can tell."""
        at = clocks.ints("rank").searchsorted(self.rank)
        clock = clocks.ints("clock")[at]
        one_clock = self.max(clock) == self.min(clock)
        error = self.max(clocks.ints("error_ns").clip(min=0)[at])  # 0 where it is unknown
        self.gate = TRUST * np.where(one_clock, matching.SAME_HOST_ERROR_NS, error)
        self.comparable = one_clock | self.all(self.timed)
        ends_at = self.starts + self.size - 1
        self.first, self.tau = self.arrival[self.starts], self.arrival[ends_at]
        second = self.arrival[np.maximum(ends_at - 1, self.starts)]
        sure = self.comparable & (self.tau - second > self.gate)
        self.last_rank = np.where(sure, self.rank[ends_at], NULL)

    def wait(self) -> Int64:
        """Each row's waiting, NULL if unknown."""
        others = self.min(np.where(self.is_root, FOREVER, self.arrival))
        until = np.where(self.from_root, self.root_arrival, self.tau)
        until = np.where(self.to_root, others, until)[self.of]
        waits = np.where(self.is_root, ~self.from_root[self.of], ~self.to_root[self.of])
        # A send that ended before its recv began had nobody to wait for.
        waits &= ~self.p2p[self.of] | (self.end > until)
        known = self.comparable & (self.size > 1) & self.has_root & (self.complete | ~self.to_root)
        wait = np.where(waits & known[self.of], until - self.arrival, 0)
        wait = np.where(wait > self.gate[self.of], np.minimum(wait, self.duration), 0)
        return np.where(known[self.of], wait, NULL)

    def caused(self, wait: Int64) -> Int64:
        """The others' waiting: all of it is for the last to arrive, or for a late root."""
        known = wait != NULL
        total = np.add.reduceat(np.where(known, wait, 0), self.starts) if wait.size else wait
        is_last = ~self.rooted[self.of] & (self.rank == self.last_rank[self.of])
        guilty = is_last | (self.from_root[self.of] & self.is_root)
        return np.where(known, np.where(guilty, total[self.of], 0), NULL)

    def transfer(self) -> tuple[Int64, Bool]:
        """What is left once everybody is there, and whether it is exact."""
        ready = np.maximum(self.arrival, self.root_arrival[self.of])
        time = np.where(self.from_root, self.max(self.end - ready), self.took)
        exact = self.complete & self.comparable & self.has_root
        return np.where(exact & (time > self.gate), time, self.min(self.duration)), exact

    def beyond_error(self, difference: Int64) -> Int64:
        """Differences of operations' times, 0 where the clocks cannot tell them from it."""
        return np.where(difference > self.gate, difference, 0)

    def max(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The largest of each operation's rows."""
        return np.maximum.reduceat(values, self.starts) if values.size else values

    def min(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The smallest of each operation's rows."""
        return np.minimum.reduceat(values, self.starts) if values.size else values

    def all(self, values: Bool) -> Bool:
        """Whether it holds for all of each operation's rows."""
        return np.logical_and.reduceat(values, self.starts) if values.size else values

    def coded(self, column: Coded) -> Coded:
        """One name per operation, wherever some of its rows has one; the last of the names."""
        return Coded(self.max(column.codes[self.order]), column.names)


def called_ns(table: Rows) -> Int64:
    """When each row began; gloo's sends and recvs when they were called.

    These begin in the call, and are only noted when its thread next runs.
    """
    start, launch = table.ints("start_ns"), table.ints("launch_ns")
    called = table.coded("device").being("cpu")
    called &= table.coded("op").where(POINT_TO_POINT.__contains__)
    return np.where(called & (launch != NULL), np.minimum(launch, start), start)
