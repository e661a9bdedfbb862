"""Where each device's time went: compute, communication, copies, idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64, first_rows, numbered
from commtrace.intervals import Intervals, Places, intersect, subtract, union
from commtrace.measures import measure, rank_measure, taken
from commtrace.metrics.rank.activity import device_order
from commtrace.metrics.rank.rank_events import (
    CALL,
    COMMUNICATION,
    COMPUTE,
    COPY,
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
    Column("idle_ns", "Int64", "The span less the time in which anything ran.", "ns"),
)
DEVICES = Table(
    "devices",
    "one device of one rank. Of the CPU of a rank that also uses a GPU a trace shows only "
    "the communication: the other times are null",
    (*_WHERE, *_TIMES),
)
DEVICE_STEPS = Table(
    "device_steps", "the work that one step launched on one device", (*_WHERE, _STEP, *_TIMES)
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
    return _devices(_events(run, ranks, by_step=False), run)


@rank_measure
def rank_steps(run: Measures, *ranks: int) -> Columns:
    """The rows of ``DEVICE_STEPS`` of some ranks."""
    return _devices(_events(run, ranks, by_step=True), run)


def _devices(its: _Events, run: Measures) -> Columns:
    """The columns of both tables."""
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
    compute = on_device(subtract(when(COMPUTE), when(CALL)))
    starts, ends = (np.concatenate(both) for both in zip(communication, copy, compute, strict=True))
    overlapped_ns = places.totals(intersect(communication, compute))
    communication_ns = places.totals(communication)
    first_ns, last_ns = places.spans
    spans = zip(its.rank.tolist(), first_ns.tolist(), last_ns.tolist(), strict=True)
    span_ns = last_ns - first_ns - np.asarray([run.paused_ns(*span) for span in spans], np.int64)
    times = {
        "span_ns": span_ns,
        "compute_ns": places.totals(compute),
        "copy_ns": places.totals(copy),
        "overlapped_communication_ns": overlapped_ns,
        "exposed_communication_ns": communication_ns - overlapped_ns,
        "idle_ns": span_ns - places.totals(union(starts, ends)),
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


class _Events(NamedTuple):
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


def _events(run: Measures, ranks: Sequence[int], *, by_step: bool) -> _Events:
    """All but those of streams that only call, and, in steps, of none."""
    its = rank_events(run, ranks)
    step = its.step if by_step else np.zeros_like(its.step)
    known = (its.device >= 0) & (step != NULL) & (its.stream != NULL) & (its.kind >= 0)
    stream = numbered(*(column[known] for column in (its.rank, its.device, step, its.stream)))
    works = np.bincount(stream, its.kind[known] != CALL) > 0
    rows = np.flatnonzero(known)[works[stream]]
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
        step[rows[at]],
    )
