"""How long each labelled range lasted, and how long what it launched ran."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, among, rows_by
from commtrace.intervals import Intervals, covered, union
from commtrace.measures import measure
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.labels import Labels, labels
from commtrace.metrics.rank.rank_events import without_kernel
from commtrace.metrics.rank.rows_of import blocks
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["RangeTimes", "range_times"]

_COPY, _COMPUTE, _COMMUNICATION = range(3)


class RangeTimes(Struct, frozen=True):
    """Of each range of ``labels`` when it began and was done, and how long its work ran.

    It lasts while its host is in it, and where it launched work on GPUs at least from the
    first start to the last end of that. ``worked`` is whether it launched anything. Times
    of compute and communication are NaN where the compute of a device is unknown.
    """

    begin_ns: Int64
    done_ns: Int64
    worked: Bool
    compute_ns: Float64
    exposed_ns: Float64
    overlapped_ns: Float64


class _Events(Struct, frozen=True):
    """Where and when they ran, and by which thread and when they were launched."""

    rank: Int64
    device: Coded
    thread: Int64
    launch: Int64
    start: Int64
    duration: Int64


class _Work(NamedTuple):
    """Events that a range launched; one that is in several ranges stands here for each."""

    range: Int64
    device: Int64
    kind: Int64
    start: Int64
    end: Int64

    def of(self, mine: Bool | Int64) -> _Work:
        return _Work(*(column[mine] for column in self))


@measure
def range_times(run: Measures) -> RangeTimes:
    """How long each range of ``labels`` lasted, and how long what it launched ran."""
    its = labels(run)
    devices = [place for place in device_activity(run) if its.label.size]
    known = [device_activity(run)[place].compute for place in devices]
    work = _launched(run, its, {place: i for i, place in enumerate(devices)})
    on_gpu = np.array([place.device != "cpu" for place in devices], dtype=np.bool_)
    begin, done = _extents(its, work.of(on_gpu[work.device]))
    worked = np.zeros(its.label.size, dtype=np.bool_)
    worked[work.range] = True
    computed, _ = _lengths(work.of(work.kind == _COMPUTE), known, worked.size)
    overlapped, all_ = _lengths(work.of(work.kind == _COMMUNICATION), known, worked.size)
    return RangeTimes(begin, done, worked, computed, all_ - overlapped, overlapped)


def _launched(run: Measures, its: Labels, devices: dict[Device, int]) -> _Work:
    parts = [_Work(*(np.empty(0, np.int64) for _ in _Work._fields))]
    for kind, events in _events(run) if devices else ():
        device = np.empty(events.rank.size, dtype=np.int64)
        for (rank, name), at in rows_by(events.rank, events.device).items():
            device[at] = devices[Device(rank, name)]
        rows, ranges = its.around(its.innermost(events.rank, events.launch, events.thread))
        start, kinds = events.start[rows], np.full(rows.size, kind)
        parts.append(_Work(ranges, device[rows], kinds, start, start + events.duration[rows]))
    return _Work(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _events(run: Measures) -> Iterator[tuple[int, _Events]]:
    """The tables of events in one form."""
    for kernels in blocks(run, "kernels"):
        communicates = kernels.coded("kind").being("communication")
        yield _COMPUTE, _on_device(kernels, ~communicates)
        yield _COMMUNICATION, _on_device(kernels, communicates)
    called = run.rows("collectives")
    yield _COMMUNICATION, _on_device(called, without_kernel(called))
    for copies in blocks(run, "copies"):
        yield _COPY, _on_device(copies, np.ones(len(copies), np.bool_))
    known = {
        place.rank
        for place, done in device_activity(run).items()
        if place.device == "cpu" and done.compute is not None
    }
    ops = run.rows("ops")
    computes = ops.coded("kind").being("compute") & among(ops.ints("rank"), [*known])
    rank, thread, start, duration = (
        ops.ints(name)[computes] for name in ("rank", "thread", "start_ns", "duration_ns")
    )
    on_cpu = Coded(np.zeros(rank.size, np.int32), ("cpu",))
    yield _COMPUTE, _Events(rank, on_cpu, thread, start, start, duration)


def _on_device(table: Rows, mine: Bool) -> _Events:
    thread, launch, start, duration = (
        table.ints(name)[mine] for name in ("thread", "launch_ns", "start_ns", "duration_ns")
    )
    device = table.coded("device").take(mine)
    return _Events(table.ints("rank")[mine], device, thread, launch, start, duration)


def _extents(its: Labels, on_gpu: _Work) -> tuple[Int64, Int64]:
    """The longer of the host's range, and from the first start to the last end of its work."""
    first, last = its.end_ns.copy(), its.start_ns.copy()
    first[on_gpu.range], last[on_gpu.range] = np.iinfo(np.int64).max, 0
    np.minimum.at(first, on_gpu.range, on_gpu.start)
    np.maximum.at(last, on_gpu.range, on_gpu.end)
    longer = last - first > its.end_ns - its.start_ns
    return np.where(longer, first, its.start_ns), np.where(longer, last, its.end_ns)


def _lengths(work: _Work, known: list[Intervals | None], ranges: int) -> tuple[Float64, Float64]:
    """Of each range, while any of this work ran and its device computed; and while it ran."""
    once = _merged(work)
    once = once.of(np.argsort(once.device, kind="stable"))
    inside = np.zeros(once.start.size)
    bounds = np.searchsorted(once.device, np.arange(len(known) + 1)).tolist()
    for compute, first, last in zip(known, bounds[:-1], bounds[1:], strict=True):
        start, end = once.start[first:last], once.end[first:last]
        inside[first:last] = np.nan if compute is None else covered(start, end, compute)
    computing, running = (
        np.bincount(once.range, weights=time, minlength=ranges).astype(np.float64)
        for time in (inside, once.end - once.start)
    )
    return computing, running


def _merged(work: _Work) -> _Work:
    """What a range ran on one device, as a merged set."""
    # Each range and device gets a stretch of time of its own, in which the set is merged.
    times, when = np.unique(np.concatenate((work.start, work.end)), return_inverse=True)
    n, width, devices = work.start.size, times.size + 1, int(work.device.max(initial=0)) + 1
    own = (work.range * devices + work.device) * width
    start, end = union(own + when[:n], own + when[n:])
    place = start // width
    kind = np.full(start.size, work.kind.max(initial=0))
    return _Work(place // devices, place % devices, kind, times[start % width], times[end % width])
