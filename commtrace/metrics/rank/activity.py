"""What kept each stream of each device busy: the ground that the measures of time share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commtrace.intervals import Intervals, subtract, union
from commtrace.measures import measure
from commtrace.trace_tables import CUT_BEFORE_GPU

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = [
    "Device",
    "Stream",
    "Work",
    "by_device",
    "device_work",
    "device_work_by_step",
    "without_kernel",
    "work",
]

Rows = npt.NDArray[np.intp]

_NONE: Intervals = (np.empty(0, np.int64), np.empty(0, np.int64))


# Most measures start from the same work; a trace's tables never change.


class Stream(NamedTuple):
    """Where work ran: a device's stream, or a CPU's thread; in one step if that was asked."""

    rank: int
    device: str
    stream: int
    step: int | None = None


class Device(NamedTuple):
    """A device of a rank; in one step if that was asked."""

    rank: int
    device: str
    step: int | None = None


@dataclass(frozen=True)
class Work:
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
    return _work_of(run, by_step=False)


def by_device(streams: Mapping[Stream, Work]) -> dict[Device, list[tuple[Stream, Work]]]:
    """The streams of each device, and step if there are steps, in their order."""
    devices: dict[Device, list[tuple[Stream, Work]]] = {}
    for stream, done in streams.items():
        place = Device(stream.rank, stream.device, stream.step)
        devices.setdefault(place, []).append((stream, done))
    return devices


@measure
def device_work(run: Measures) -> dict[Device, Work]:
    """Every device that did any work, all its streams together; as ``work`` otherwise."""
    return _of_devices(work(run))


def device_work_by_step(run: Measures) -> dict[Device, Work]:
    """The work that each step launched; what no step launched is left out. It is not kept."""
    return _of_devices(_work_of(run, by_step=True))


def _of_devices(streams: Mapping[Stream, Work]) -> dict[Device, Work]:
    return {
        device: _together([done for _, done in its]) for device, its in by_device(streams).items()
    }


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


def _device_order(device: str) -> tuple[str, int, str]:
    # cuda:10 behind cuda:9
    kind, _, number = device.partition(":")
    return kind, len(number), number


def _work_of(run: Measures, *, by_step: bool) -> dict[Stream, Work]:
    cut = {note.rank for note in run.notes if note.code == CUT_BEFORE_GPU}
    gpu_ranks = {*run.kernels["rank"].unique(), *run.copies["rank"].unique(), *cut}
    found: dict[Stream, dict[str, _Part]] = {}
    for events in _tables(run, gpu_ranks):
        start = events["start_ns"].to_numpy()
        end = start + events["duration_ns"].to_numpy()
        for stream, kind, rows in _groups(events, by_step):
            first, last = start[rows], end[rows]
            part = _Part(len(rows), int(first.min()), int(last.max()), union(first, last))
            parts = found.setdefault(stream, {})
            parts[kind] = part if kind not in parts else _both(parts[kind], part)
    return {
        stream: _merged(parts, has_compute=stream.device != "cpu" or stream.rank not in gpu_ranks)
        for stream, parts in sorted(found.items(), key=_order)
        if parts.keys() != {"call"}
    }


def _joined(sets: list[Intervals]) -> Intervals:
    filled = [one for one in sets if one[0].size]
    if len(filled) == 1:
        return filled[0]
    return union(*(np.concatenate([_NONE[i], *(one[i] for one in filled)]) for i in (0, 1)))


@dataclass(frozen=True)
class _Part:
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


def _tables(run: Measures, gpu_ranks: set[int]) -> Iterator[pd.DataFrame]:
    """The tables of events in one form."""
    yield run.kernels
    yield run.copies.assign(kind="copy")
    called = run.collectives
    yield called[without_kernel(called)].assign(kind="communication")
    ops = run.ops[~run.ops["rank"].isin(gpu_ranks)].rename(columns={"thread": "stream"})
    kind = ops["kind"].astype(object).where(ops["kind"] != "communication", "call")
    yield ops.assign(device="cpu", kind=kind)


def without_kernel(called: pd.DataFrame) -> pd.Series[bool]:
    """Which rows of ``collectives`` are in no other table: a copy engine's, and the CPU's."""
    copied = called["name"].astype(object).str.startswith("Memcpy", na=False)
    return (called["device"] == "cpu") | copied.astype(bool)


def _groups(events: pd.DataFrame, by_step: bool) -> Iterator[tuple[Stream, str, Rows]]:
    columns = ["rank", "device", "stream", "kind", *(["step"] if by_step else [])]
    groups: Any = events.groupby(columns, observed=True, sort=False).indices
    for (rank, device, stream, kind, *step), rows in groups.items():
        yield Stream(int(rank), device, int(stream), int(step[0]) if by_step else None), kind, rows


def _order(item: tuple[Stream, object]) -> tuple[int, tuple[str, int, str], int, int]:
    rank, device, stream, step = item[0]
    return rank, _device_order(device), step or 0, stream
