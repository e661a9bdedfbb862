"""What kept each stream of each device busy: the ground that the measures of time share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, rows_by
from commtrace.intervals import Intervals, subtract, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import blocks_of_ranks, ranks_of, rows_of_ranks
from commtrace.trace_tables import CUT_BEFORE_GPU

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures
    from commtrace.packed import Packed

__all__ = [
    "Device",
    "Stream",
    "Work",
    "by_device",
    "calls_by_device",
    "device_order",
    "device_work",
    "events_by_table",
    "on_gpu",
    "without_kernel",
    "work",
]

_NONE: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


# Most measures start from the same work; a trace's tables never change.


class Stream(NamedTuple):
    """Where work ran: a device's stream, or a CPU's thread."""

    rank: int
    device: str
    stream: int


class Device(NamedTuple):
    """A device of a rank."""

    rank: int
    device: str


class Work(Struct, frozen=True):
    """What ran in one place: how many events of each kind, and when, as merged sets.

    ``compute`` is None where the trace does not show: on the CPU of a rank that also uses a
    GPU only communication is kept. ``start_ns`` and ``end_ns`` are the first start and the
    last end of any event.
    """

    events: Mapping[str, int]
    start_ns: int
    end_ns: int
    compute: Intervals | None
    communication: Intervals
    copy: Intervals

    @property
    def busy(self) -> Intervals:
        """Whenever anything ran."""
        compute = [] if self.compute is None else [self.compute]
        return _joined([*compute, self.communication, self.copy])


@measure
def work(run: Measures) -> dict[Stream, Work]:
    """Every stream that did any work, in the order of rank, device and stream.

    On a GPU: communication kernels, all other kernels, copies and fills. On a CPU, per
    thread: the collectives that run there, and the operators that no other calls, less the
    time they spend enqueueing or awaiting communication.
    """
    found: dict[Stream, dict[str, _Part]] = {}
    tables = (events_by_table(run, ranks) for ranks in blocks_of_ranks(run))
    for events in chain.from_iterable(tables):
        start = events["start_ns"].to_numpy()
        end = start + events["duration_ns"].to_numpy()
        for stream, kind, rows in _groups(events):
            first, last = start[rows], end[rows]
            part = _Part(len(rows), int(first.min()), int(last.max()), union(first, last))
            parts = found.setdefault(stream, {})
            parts[kind] = part if kind not in parts else _both(parts[kind], part)
    return {
        stream: _merged(parts, has_compute=stream.device != "cpu" or stream.rank not in on_gpu(run))
        for stream, parts in sorted(found.items(), key=_order)
        if parts.keys() != {"call"}
    }


def by_device(streams: Mapping[Stream, Work]) -> dict[Device, list[tuple[Stream, Work]]]:
    """The streams of each device, in their order."""
    devices: dict[Device, list[tuple[Stream, Work]]] = {}
    for stream, done in streams.items():
        place = Device(stream.rank, stream.device)
        devices.setdefault(place, []).append((stream, done))
    return devices


@measure
def device_work(run: Measures) -> dict[Device, Work]:
    """Every device that did any work, all its streams together; as ``work`` otherwise."""
    streams = by_device(work(run))
    return {device: _together([done for _, done in its]) for device, its in streams.items()}


@measure
def calls_by_device(run: Measures) -> dict[tuple[int, str], Int64]:
    """The rows of ``collectives`` on every device that did any work."""
    called = run.collective_columns
    places = rows_by(called["rank"], called["device"])
    return {device: places.get(device, np.empty(0, np.int64)) for device in device_work(run)}


def _together(parts: Sequence[Work]) -> Work:
    if len(parts) == 1:
        return parts[0]
    compute = [part.compute for part in parts if part.compute is not None]
    return Work(
        events=sum((Counter(part.events) for part in parts), Counter()),
        start_ns=min(part.start_ns for part in parts),
        end_ns=max(part.end_ns for part in parts),
        compute=_joined(compute) if len(compute) == len(parts) else None,
        communication=_joined([part.communication for part in parts]),
        copy=_joined([part.copy for part in parts]),
    )


def device_order(device: str) -> tuple[str, int, str]:
    """By what devices are sorted: cuda:10 behind cuda:9."""
    kind, _, number = device.partition(":")
    return kind, len(number), number


@measure
def on_gpu(run: Measures) -> frozenset[int]:
    """The ranks that use a GPU, also where their files broke off before its events."""
    cut = {note.rank for note in run.notes if note.code == CUT_BEFORE_GPU and note.rank is not None}
    return frozenset({*ranks_of(run, "kernels"), *ranks_of(run, "copies"), *cut})


def _joined(sets: list[Intervals]) -> Intervals:
    filled = [one for one in sets if one[0].size]
    if len(filled) == 1:
        return filled[0]
    return union(*(np.concatenate([_NONE[i], *(one[i] for one in filled)]) for i in (0, 1)))


class _Part(Struct, frozen=True):
    """The events of one kind on one stream."""

    events: int
    start_ns: int
    end_ns: int
    when: Intervals


def _both(a: _Part, b: _Part) -> _Part:
    return _Part(
        a.events + b.events,
        min(a.start_ns, b.start_ns),
        max(a.end_ns, b.end_ns),
        _joined([a.when, b.when]),
    )


def _merged(parts: dict[str, _Part], *, has_compute: bool) -> Work:
    calls = parts.pop("call", None)
    when = {kind: part.when for kind, part in parts.items()}
    compute = when.get("compute", _NONE)
    return Work(
        events={kind: part.events for kind, part in parts.items()},
        start_ns=min(part.start_ns for part in parts.values()),
        end_ns=max(part.end_ns for part in parts.values()),
        compute=(subtract(compute, calls.when) if calls else compute) if has_compute else None,
        communication=when.get("communication", _NONE),
        copy=when.get("copy", _NONE),
    )


_COLUMNS = ["rank", "device", "stream", "step", "start_ns", "duration_ns"]


def events_by_table(run: Measures, ranks: Sequence[int]) -> Iterator[pd.DataFrame]:
    """What ran on some ranks, table by table in one form: a ``call`` enqueues or awaits others."""
    yield rows_of_ranks(run, "kernels", ranks, [*_COLUMNS, "kind"])
    copies = rows_of_ranks(run, "copies", ranks, _COLUMNS)
    if len(copies):
        yield copies.assign(kind="copy")
    called = rows_of_ranks(run, "collectives", ranks, [*_COLUMNS, "name"])
    yield called.loc[without_kernel(called), _COLUMNS].assign(kind="communication")
    ops = rows_of_ranks(run, "ops", ranks)
    ops = ops[~ops["rank"].isin(on_gpu(run))].rename(columns={"thread": "stream"})
    if len(ops):
        kind = ops["kind"].astype(object).where(ops["kind"] != "communication", "call")
        yield ops.assign(device="cpu", kind=kind)
        # An operator that waits for communication within, as of autograd, does not compute then.
        gaps = rows_of_ranks(run, "host_gaps", ranks)
        gaps = gaps[gaps["rank"].isin(ops["rank"].unique())].rename(columns={"thread": "stream"})
        yield gaps.assign(device="cpu", kind="call")


def without_kernel(called: pd.DataFrame | Packed) -> pd.Series[bool]:
    """Which rows of ``collectives`` are in no other table: a copy engine's, and the CPU's."""
    name = called["name"].cat
    copied = np.asarray([*(one.startswith("Memcpy") for one in name.categories), False])
    return (called["device"] == "cpu") | copied[name.codes]


def _groups(events: pd.DataFrame) -> Iterator[tuple[Stream, str, Int64]]:
    columns = (events[name] for name in ("rank", "device", "stream", "kind"))
    for (rank, device, stream, kind), rows in rows_by(*columns).items():
        yield Stream(rank, device, stream), kind, rows


def _order(item: tuple[Stream, object]) -> tuple[int, tuple[str, int, str], int]:
    rank, device, stream = item[0]
    return rank, device_order(device), stream
