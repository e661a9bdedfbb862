"""Where each device's time went: compute, communication, copies, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Int64, first_rows, in_a_row, numbered
from commtrace.intervals import Intervals, Places, intersect, subtract, union
from commtrace.measures import measure, rank_measure, taken
from commtrace.metrics.rank.activity import device_order
from commtrace.metrics.rank.rank_events import (
    CALL,
    COMMUNICATION,
    COMPUTE,
    COPY,
    Events,
    on_gpu,
    rank_events,
)
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.table import Coded, Column, Columns, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DEVICES", "DEVICE_STEPS", "devices", "rank_devices", "rank_steps"]

_WHERE = (
    Column("rank", "int64", "The rank."),
    Column("device", "category", "torch's name, with the trace's own number: `cuda:0`, `cpu`."),
)
_STEP = Column("step", "int64", "n of the `ProfilerStep#n` that launched the work.")
_TIMES = (
    Column("span_ns", "Int64", "From the first start to the last end of any work.", "ns"),
    Column("compute_ns", "Int64", "While any compute kernel or operator ran.", "ns"),
    Column("communication_ns", "int64", "While any communication ran.", "ns"),
    Column("copy_ns", "Int64", "While any copy or memory fill ran.", "ns"),
    Column("overlapped_communication_ns", "Int64", "Communication during compute.", "ns"),
    Column(
        "exposed_communication_ns",
        "Int64",
        "Communication without compute; with the overlapped it is all communication.",
        "ns",
    ),
    Column("overlap_pct", "float64", "Overlapped share; null without communication.", "percent"),
)
_IDLE = Column("idle_ns", "Int64", "The span less the time in which anything ran.", "ns")
_STEPS_IDLE = Column(
    "idle_ns",
    "Int64",
    "Of the span, while nothing ran there of any step; where steps overlap, the first one's.",
    "ns",
)
DEVICES = Table(
    "devices",
    "one device of one rank. Of the CPU of a rank that also uses a GPU a trace shows only "
    "the communication: the other times are null",
    (*_WHERE, *_TIMES, _IDLE),
)
DEVICE_STEPS = Table(
    "device_steps",
    "the work that one step launched on one device",
    (*_WHERE, _STEP, *_TIMES, _STEPS_IDLE),
)


@measure
def devices(run: Measures, *, by_step: bool = False) -> Rows:
    """Where each device's time went, as ``DEVICES``; or per step, as ``DEVICE_STEPS``.

    Times are lengths of unions of intervals on one device, so that nothing counts twice.
    A device is listed if it did any work: a GPU if a kernel or a copy ran there; ``cpu`` if
    communication did, or of a rank without a GPU any operator but calls that enqueue or await
    communication. So a rank whose trace holds no work, or ends before its GPU events, has no
    row. Work that no step launched
    is in no step.
    """
    table, of_ranks = (DEVICE_STEPS, rank_steps) if by_step else (DEVICES, rank_devices)
    return table.rows(*(taken(of_ranks, run, *ranks) for ranks in measured_ranks(run)))


@rank_measure
def rank_devices(run: Measures, *ranks: int) -> Columns:
    """The rows of ``DEVICES`` of some ranks."""
    its = _events(rank_events(run, ranks), by_step=False)
    ran = _ran(its)
    return _columns(run, its, ran, _idle_ns(run, its, ran, np.arange(its.rank.size)))


@rank_measure
def rank_steps(run: Measures, *ranks: int) -> Columns:
    """The rows of ``DEVICE_STEPS`` of some ranks."""
    events = rank_events(run, ranks)
    its, whole = (_events(events, by_step=by_step) for by_step in (True, False))
    numbers = {place: number for number, place in enumerate(whole.devices)}
    device = np.asarray([numbers[place] for place in its.devices], np.int64)
    ran = _ran(its)
    return _columns(run, its, ran, _idle_ns(run, its, _ran(whole), device, ran.places.spans))


def _columns(run: Measures, its: _Events, ran: _Ran, idle_ns: Int64) -> Columns:
    """The columns of both tables."""
    places, communication = ran.places, ran.communication
    overlapped_ns = places.totals(intersect(communication, ran.compute))
    communication_ns = places.totals(communication)
    times = {
        "span_ns": _length_ns(run, its.rank, *places.spans),
        "compute_ns": places.totals(ran.compute),
        "copy_ns": places.totals(ran.copy),
        "overlapped_communication_ns": overlapped_ns,
        "exposed_communication_ns": communication_ns - overlapped_ns,
        "idle_ns": idle_ns,
    }
    unknown = its.device.being("cpu") & np.isin(its.rank, [*on_gpu(run)])
    share = np.full(its.step.size, np.nan)
    np.divide(
        100 * overlapped_ns, communication_ns, out=share, where=~unknown & (communication_ns > 0)
    )
    return {
        "rank": its.rank,
        "device": its.device,
        "step": its.step,
        "communication_ns": communication_ns,
        "overlap_pct": share,
        **{name: np.where(unknown, NULL, time) for name, time in times.items()},
    }


def _idle_ns(
    run: Measures,
    its: _Events,
    ran: _Ran,
    device: Int64,
    spans: tuple[Int64, Int64] | None = None,
) -> Int64:
    """While nothing ran on a device within a span of it, by default the whole.

    Where spans overlap, as steps' do if hosts run ahead, it counts in the first: so their sum is
    never more than the device's.
    """
    first_ns, last_ns = ran.places.apart_from_others(spans or ran.places.spans, device)
    everything = (ran.communication, ran.copy, ran.compute)
    starts, ends = (np.concatenate(times) for times in zip(*everything, strict=True))
    busy_ns = ran.places.covered(device, first_ns, last_ns, union(starts, ends))
    return _length_ns(run, its.rank, first_ns, last_ns) - busy_ns


def _length_ns(run: Measures, rank: Int64, first_ns: Int64, last_ns: Int64) -> Int64:
    """How long spans of ranks are, without what was not recorded between two cycles."""
    if not run.pauses:
        return last_ns - first_ns
    spans = zip(rank.tolist(), first_ns.tolist(), last_ns.tolist(), strict=True)
    return last_ns - first_ns - np.asarray([run.paused_ns(*span) for span in spans], np.int64)


class _Ran(Struct, frozen=True):
    """What ran in each place, where those of ``Places`` are."""

    places: Places
    communication: Intervals
    copy: Intervals
    compute: Intervals


def _ran(its: _Events) -> _Ran:
    streams, work = Places(its.stream, its.start_ns, its.end_ns), its.kind != CALL
    places = Places(its.place[work], its.start_ns[work], its.end_ns[work])
    place_of = np.zeros(int(its.stream.max(initial=-1)) + 1, dtype=np.int64)
    place_of[its.stream] = its.place

    def when(kind: int) -> Intervals:
        mine = its.kind == kind
        return streams.union(its.stream[mine], its.start_ns[mine], its.end_ns[mine])

    def on_device(merged: Intervals) -> Intervals:
        stream, start, end = streams.apart(merged)
        return places.union(place_of[stream], start, end)

    communication, copy = on_device(when(COMMUNICATION)), on_device(when(COPY))
    return _Ran(places, communication, copy, on_device(subtract(when(COMPUTE), when(CALL))))


class _Events(Struct, frozen=True):
    """What ran: when, of which kind, and on which stream and device, which are numbered.

    ``rank``, ``device`` and ``step`` are those of the devices, in their order.
    """

    start_ns: Int64
    end_ns: Int64
    kind: Int64
    stream: Int64
    place: Int64
    rank: Int64
    device: Coded
    step: Int64

    @property
    def devices(self) -> list[tuple[int, str | None]]:
        """Rank and name of each place's device."""
        return [*zip(self.rank.tolist(), self.device.decoded(), strict=True)]


def _events(its: Events, *, by_step: bool) -> _Events:
    """All but those of streams that only call, and, in steps, of none."""
    step = its.step if by_step else np.zeros_like(its.step)
    known = np.flatnonzero(
        (its.device >= 0) & (step != NULL) & (its.stream != NULL) & (its.kind >= 0)
    )
    some = in_a_row(known)
    stream = numbered(*(column[some] for column in (its.rank, its.device, step, its.stream)))
    works = np.bincount(stream, its.kind[some] != CALL) > 0
    rows = in_a_row(known[works[stream]])
    names = sorted(its.devices, key=device_order)
    device = np.asarray([names.index(name) for name in its.devices], np.int64)[its.device[rows]]
    place = numbered(its.rank[rows], device, step[rows])
    at = first_rows(place)
    return _Events(
        its.start_ns[rows],
        its.start_ns[rows] + its.duration_ns[rows],
        its.kind[rows],
        numbered(place, its.stream[rows]),
        place,
        its.rank[rows][at],
        Coded.of([names[number] for number in device[at].tolist()]),
        step[rows][at],
    )
