"""Where each device's time went: compute, communication, copies, idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Int64, codes, integers
from commtrace.intervals import Intervals, Places, intersect, subtract, union
from commtrace.measures import measure
from commtrace.metrics.rank.activity import device_order, events_by_table, on_gpu
from commtrace.metrics.rank.rows_of import blocks_of_ranks
from commtrace.table import Coded, Column, Columns, Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["DEVICES", "DEVICE_STEPS", "devices"]

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
_KINDS = ("compute", "communication", "copy", "call")
_COMPUTE, _COMMUNICATION, _COPY, _CALL = range(4)


@measure
def devices(run: Measures, *, by_step: bool = False) -> pd.DataFrame:
    """Where each device's time went, as ``DEVICES``; or per step, as ``DEVICE_STEPS``.

    Times are lengths of unions of intervals on one device, so that nothing counts twice.
    A device is listed if it did any work: a GPU if a kernel or a copy ran there; ``cpu`` if
    communication did, or of a rank without a GPU any operator but calls that enqueue or await
    communication. So a rank whose trace holds no work, or ends before its GPU events, has no
    row. Work that no step launched
    is in no step.
    """
    table = DEVICE_STEPS if by_step else DEVICES
    return table.frame(*(_devices(_events(run, its, by_step), run) for its in blocks_of_ranks(run)))


def _devices(its: _Events, run: Measures) -> Columns:
    """The columns of all tables of them, of some ranks."""
    streams, work = Places(its.stream, its.start_ns, its.end_ns), its.kind != _CALL
    places = Places(its.place[work], its.start_ns[work], its.end_ns[work])
    place_of = np.zeros(int(its.stream.max(initial=-1)) + 1, dtype=np.int64)
    place_of[its.stream] = its.place

    def when(kind: int) -> Intervals:
        mine = its.kind == kind
        return streams.union(its.stream[mine], its.start_ns[mine], its.end_ns[mine])

    def on_device(merged: Intervals) -> Intervals:
        stream, start, end = streams.apart(merged)
        return places.union(place_of[stream], start, end)

    communication, copy = on_device(when(_COMMUNICATION)), on_device(when(_COPY))
    compute = on_device(subtract(when(_COMPUTE), when(_CALL)))
    starts, ends = (np.concatenate(both) for both in zip(communication, copy, compute, strict=True))
    overlapped_ns = places.totals(intersect(communication, compute))
    communication_ns = places.totals(communication)
    first_ns, last_ns = places.spans
    paused = zip(its.rank.tolist(), first_ns.tolist(), last_ns.tolist(), strict=True)
    span_ns = last_ns - first_ns - np.asarray([run.paused_ns(*one) for one in paused], np.int64)
    times = {
        "span_ns": span_ns,
        "compute_ns": places.totals(compute),
        "copy_ns": places.totals(copy),
        "overlapped_communication_ns": overlapped_ns,
        "exposed_communication_ns": communication_ns - overlapped_ns,
        "idle_ns": span_ns - places.totals(union(starts, ends)),
    }
    on_host = np.asarray([device == "cpu" for device in its.device], dtype=np.bool_)
    unknown = on_host & np.isin(its.rank, [*on_gpu(run)])
    share = np.full(its.rank.size, np.nan)
    np.divide(
        100 * overlapped_ns, communication_ns, out=share, where=~unknown & (communication_ns > 0)
    )
    return {
        "rank": its.rank,
        "device": Coded.of(its.device),
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
    device: list[str | None]
    step: Int64


def _events(run: Measures, ranks: Sequence[int], by_step: bool) -> _Events:
    """All but those of streams that only call, and, in steps, of none."""
    names: dict[str, int] = {}
    kinds = {name: code for code, name in enumerate(_KINDS)}
    columns = [
        (
            integers(table["rank"]),
            _coded(table["device"], names),
            integers(table["step"]) if by_step else np.zeros(len(table), np.int64),
            integers(table["stream"]),
            _coded(table["kind"], kinds),
            integers(table["start_ns"]),
            integers(table["duration_ns"]),
        )
        for table in events_by_table(run, ranks)
    ]
    every = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    known = (every[1] >= 0) & (every[2] != NULL) & (every[3] != NULL) & (every[4] >= 0)
    stream = codes(*(column[known] for column in every[:4]))
    works = np.bincount(stream, every[4][known] != _CALL) > 0
    rows = np.flatnonzero(known)[works[stream]]
    rank, device, step, number, kind, start, duration = (column[rows] for column in every)
    place = codes(rank, device, step)
    at = np.unique(place, return_index=True)[1]
    in_order = sorted(names, key=device_order)
    device_at = np.argsort([names[name] for name in in_order])[device[at]]
    order = np.lexsort((step[at], device_at, rank[at]))
    at = at[order]
    return _Events(
        start,
        start + duration,
        kind,
        codes(place, number),
        np.argsort(order)[place],
        rank[at],
        [in_order[one] for one in device_at[order].tolist()],
        step[at],
    )


def _coded(column: pd.Series[Any], names: dict[str, int]) -> Int64:
    """The number of each name, which new ones get; -1 where it is null."""
    found, values = column.factorize()
    number = [names.setdefault(value, len(names)) for value in values]
    places: Int64 = np.asarray([*number, -1], dtype=np.int64)[found]
    return places
