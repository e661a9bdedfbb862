"""What one GPU ran, in order, and where it had nothing to run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, rows_by
from commtrace.diagnosis import CannotLook
from commtrace.intervals import Intervals, subtract, union, united
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.quantiles import quantile
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "SMALL_BYTES",
    "Timeline",
    "behind",
    "elsewhere",
    "places",
    "ready_ns",
    "starved_when",
    "timelines",
]

SMALL_BYTES = 1_000_000
"""A copy of fewer costs its launch and the host's waiting for it, not its bytes."""
_WORK = ("kernels", "copies")
_KEPT = 1 << 18  # kernels and copies: some 20 MB
_CLOCKS_NS = 5_000  # the GPU's times and the host's may differ by that


class Timeline(Struct, frozen=True):
    """Kernels, copies and fills of a device by start, all streams together.

    The first starts at ``first_ns``. Of those whose launch is known: ``idle_ns`` is how long
    before each of them the device was idle, ``ready_ns`` how long before its start
    the host had launched it, ``kind`` a kernel's or a copy's, None where unknown,
    ``size_bytes`` a copy's, NaN where unknown.
    """

    rank: int
    device: str
    first_ns: int
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    stream: Int64
    idle_ns: Int64
    kinds: Coded
    size_bytes: npt.NDArray[np.float64]

    @property
    def kind(self) -> npt.NDArray[np.object_]:
        """As words."""
        names = np.asarray((*self.kinds.names, None), dtype=object)
        kind: npt.NDArray[np.object_] = names[self.kinds.codes]
        return kind

    @property
    def with_host(self) -> Bool:
        """Whether it is a copy from or to the host."""
        return self.kinds.where(lambda kind: kind in ("HtoD", "DtoH"))

    def small_copies(self, below_bytes: float = SMALL_BYTES) -> Bool:
        """Whether it is a copy from or to the host of less."""
        return np.asarray(self.with_host & (self.size_bytes < below_bytes))

    @property
    def ready_ns(self) -> Int64:
        """From launch to start."""
        return self.start_ns - self.launch_ns

    def starved(self) -> Bool:
        """Whether the device was idle before an event because it was not launched yet.

        The usual time from launch to start, when nothing is in the way, is the least that
        one event in ten needs.
        """
        usual = quantile(self.ready_ns, 0.1) if self.ready_ns.size else 0.0
        launched_late = self.launch_ns + usual >= self.start_ns - self.idle_ns
        return (self.idle_ns > 0) & launched_late & (self.ready_ns <= self.idle_ns + usual)

    def held_up(self) -> Bool:
        """Whether the device was idle before an event that was launched before it ran dry."""
        return (self.idle_ns > 0) & (self.ready_ns > self.idle_ns)

    def of_graphs(self) -> Bool:
        """Whether one launch started an event and others, as that of a CUDA graph does."""
        launch = codes(self.launch_ns)
        return np.asarray(np.bincount(launch)[launch] > 1)

    def starved_beside(self, copies: Bool) -> Bool:
        """Whether starved next to one of these copies, which block the host.

        Behind one, or before one where since the last of them nothing was launched ahead.
        What was launched while the copy still ran was not held up by it.
        """
        starved = self.starved() & (self.ready_ns <= self.idle_ns + _CLOCKS_NS)
        place = np.arange(len(copies))
        last_copy = np.maximum.accumulate(np.where(copies, place, -1))
        last_starved = np.maximum.accumulate(np.where(starved, -1, place))
        before = np.concatenate(([-1], last_copy[:-1]))
        return starved & (before >= 0) & (last_starved <= before) & (copies | behind(copies))


def behind(events: Bool) -> Bool:
    """Which come directly behind one of these."""
    return np.concatenate(([False], events[:-1]))


def timelines(run: Measures) -> Iterator[Timeline]:
    """Every GPU's timeline, in turn; CannotLook where the trace has no GPU or no launches."""
    if not places(run):
        raise CannotLook("needs work on a GPU")
    if not any((its.ints("launch_ns") != NULL).any() for _, its in _by_rank(run)):
        raise CannotLook("needs launches: the trace links none to the device's work")
    if sum(len(run.rows(table)) for table in _WORK) <= _KEPT:
        return iter(_all(run))
    return (_timeline(run, rank, device) for rank, device in places(run))


@measure
def _all(run: Measures) -> list[Timeline]:
    """Those of a run of few events: five rules ask for them."""
    return [_timeline(run, rank, device) for rank, device in places(run)]


@measure
def places(run: Measures) -> list[tuple[int, str]]:
    """The ranks' GPUs."""
    found = set[tuple[int, str]]()
    for rank, its in _by_rank(run):
        names, codes = its.coded("device").names, distinct(its.coded("device").codes).tolist()
        found |= {(rank, names[code]) for code in codes if code >= 0}
    return sorted(found)


def _by_rank(run: Measures) -> Iterator[tuple[int, Rows]]:
    """The kernels of each rank, and its copies."""
    for table in _WORK:
        for rank in ranks_of(run, table):
            yield rank, rows_of_rank(run, table, rank)


def _timeline(run: Measures, rank: int, device: str) -> Timeline:
    parts = [_on_device(run, table, rank, device) for table in _WORK]
    start, duration, launch, stream = (
        np.concatenate([its.ints(name)[at] for its, at in parts])
        for name in ("start_ns", "duration_ns", "launch_ns", "stream")
    )
    (kernels, of_kernels), (copies, of_copies) = parts
    size = copies.ints("size_bytes")[of_copies]
    size_bytes = np.append(
        np.full(of_kernels.size, np.nan), np.where(size == NULL, np.nan, size.astype(np.float64))
    )
    codes = kernels.coded("kind").codes[of_kernels], copies.coded("kind").codes[of_copies]
    first_copy = len(kernels.coded("kind").names)
    kind = np.append(codes[0], np.where(codes[1] < 0, -1, codes[1] + first_copy))
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + duration)[order]
    idle = np.concatenate(([0], (start[1:] - np.maximum.accumulate(end)[:-1]).clip(min=0)))
    for begun, over in run.pauses.get(rank, ()):  # nobody knows what it ran meanwhile
        idle[(start >= over) & (start - idle <= begun)] = 0
    launched = launch[order] != NULL
    order = order[launched]
    return Timeline(
        rank,
        device,
        int(start[0]),
        start[launched],
        end[launched],
        launch[order],
        stream[order],
        idle[launched],
        Coded(kind[order], (*kernels.coded("kind").names, *copies.coded("kind").names)),
        size_bytes[order],
    )


def _on_device(run: Measures, table: str, rank: int, device: str) -> tuple[Rows, Int64]:
    """A rank's rows, and which of them are of the device."""
    its = rows_of_rank(run, table, rank)
    return its, np.flatnonzero(its.coded("device").being(device))


def starved_when(run: Measures, rank: int) -> Intervals:
    """When a rank's GPUs had nothing to run, since it was not launched yet."""
    idle = list[Intervals]()
    for its, device in places(run):
        if its == rank:
            line = _timeline(run, rank, device)
            late = line.starved()
            begin = (line.start_ns - line.idle_ns)[late]
            idle.append(subtract((begin, line.start_ns[late]), elsewhere(line, run)))
    return united(*idle)


def elsewhere(line: Timeline, run: Measures) -> Intervals:
    """When the rank's other devices computed or copied; who communicates may wait for this one."""
    begun, ended = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for table in _WORK if line.rank in _of_several(run) else ():
        its = rows_of_rank(run, table, line.rank)
        other = ~its.coded("device").being(line.device)
        if table == "kernels":
            other &= its.coded("kind").being("compute")
        begun.append(its.ints("start_ns")[other])
        ended.append((its.ints("start_ns") + its.ints("duration_ns"))[other])
    return union(np.concatenate(begun), np.concatenate(ended))


@measure
def _of_several(run: Measures) -> frozenset[int]:
    """The ranks with several GPUs."""
    several = Counter(rank for rank, _ in places(run))
    return frozenset(rank for rank, devices in several.items() if devices > 1)


def ready_ns(run: Measures, rank: Int64, device: Coded, launch_ns: Int64) -> Int64:
    """When each call was launched, and the compute launched before it on its device was done.

    On the rank's own clock, of calls whose launch is known.
    """
    ready: Int64 = launch_ns.copy()
    for (of_rank, name), at in rows_by(rank, device).items():
        its, on = _on_device(run, "kernels", of_rank, name)
        on = on[its.coded("kind").being("compute")[on] & (its.ints("launch_ns")[on] != NULL)]
        on = on[np.argsort(its.ints("launch_ns")[on], kind="stable")]
        launched = its.ints("launch_ns")[on]
        done = np.maximum.accumulate((its.ints("start_ns") + its.ints("duration_ns"))[on])
        before = np.searchsorted(launched, ready[at])
        ready[at] = np.maximum(ready[at], np.append(done, 0)[before - 1])
    return ready
