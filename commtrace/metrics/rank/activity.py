"""What kept each stream of each device busy: the ground that the measures of time share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import NULL, Int64, first_rows, in_a_row, numbered, rows_by
from commtrace.few_bytes import Integers
from commtrace.intervals import NEVER, Intervals, Places, subtract, united
from commtrace.measures import measure, rank_measure, taken
from commtrace.metrics.rank.rank_events import KINDS, on_gpu, rank_events
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.packed import PackedColumns, pack
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Activity",
    "Device",
    "Stream",
    "Times",
    "by_device",
    "calls_by_device",
    "device_activity",
    "device_order",
    "rank_activity",
    "stream_activity",
]


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


class Times(Struct, frozen=True, eq=False):
    """Intervals in few bytes."""

    begin: Integers
    until: Integers

    @classmethod
    def of(cls, begin: Int64, until: Int64) -> Times:
        """A merged set."""
        return cls(Integers.of(begin), Integers.of(until))

    @property
    def values(self) -> Intervals:
        """As it was."""
        return self.begin.values(), self.until.values()


class Activity(Struct, frozen=True):
    """What ran in one place: how many events of each kind, and ``when``, as merged sets.

    ``start_ns`` and ``end_ns`` are the first start and the last end of any event. Sets are
    unpacked when they are asked for.
    """

    events: Mapping[str, int]
    start_ns: int
    end_ns: int
    when: Mapping[str, Times]

    @property
    def compute(self) -> Intervals | None:
        """None where the trace does not show.

        On the CPU of a rank that also uses a GPU only communication is kept.
        """
        return self.when["compute"].values if "compute" in self.when else None

    @property
    def communication(self) -> Intervals:
        """When any communication ran."""
        return self.set_of("communication")

    @property
    def copy(self) -> Intervals:
        """When anything was copied, or filled."""
        return self.set_of("copy")

    @property
    def busy(self) -> Intervals:
        """Whenever anything ran."""
        return united(*(its.values for its in self.when.values()))

    def set_of(self, kind: str) -> Intervals:
        """When anything of a kind ran."""
        return self.when[kind].values if kind in self.when else NEVER


@measure
def stream_activity(run: Measures) -> dict[Stream, Activity]:
    """Every stream that did any work, in the order of rank, device and stream.

    On a GPU: communication kernels, all other kernels, copies and fills. On a CPU, per
    thread: the collectives that run there, and the operators that no other calls, less the
    time they spend enqueueing or awaiting communication.
    """
    found: dict[Stream, dict[str, _Part]] = {}
    for ranks in measured_ranks(run):
        for stream, kind, part in _parts(taken(rank_activity, run, *ranks)):
            found.setdefault(stream, {})[kind] = part
    return {
        stream: _merged(parts, has_compute=stream.device != "cpu" or stream.rank not in on_gpu(run))
        for stream, parts in sorted(found.items(), key=_order)
        if parts.keys() != {"call"}
    }


@rank_measure
def rank_activity(run: Measures, *ranks: int) -> PackedColumns:
    """What ran on each stream of some ranks: of each kind how much and, merged, when.

    A row is a ``rank``, ``device``, ``stream`` and ``kind`` (of KINDS) with its ``events``, the
    first ``start_ns`` and the last ``end_ns`` of any, and the number of ``intervals`` that they
    merge to: all rows' intervals are ``begin_ns`` and ``until_ns``, which have more entries.
    """
    its = rank_events(run, ranks)
    known = (its.device >= 0) & (its.kind >= 0) & (its.stream != NULL)
    columns = (its.rank, its.device, its.stream, its.kind, its.start_ns, its.duration_ns)
    rank, device, stream, kind, start_ns, duration_ns = (column[known] for column in columns)
    end_ns = start_ns + duration_ns
    row = numbered(rank, device, stream, kind)
    first = first_rows(row)
    places = Places(row, start_ns, end_ns)
    of, begin_ns, until_ns = places.apart(places.union(row, start_ns, end_ns))
    return pack(
        {
            "rank": rank[first],
            "device": Coded(device[first].astype(np.int32), its.devices),
            "stream": stream[first],
            "kind": Coded(kind[first].astype(np.int32), KINDS),
            "events": np.bincount(row, minlength=first.size),
            "start_ns": places.spans[0],
            "end_ns": places.spans[1],
            "intervals": np.bincount(of, minlength=first.size),
            "begin_ns": begin_ns,
            "until_ns": until_ns,
        }
    )


def by_device(streams: Mapping[Stream, Activity]) -> dict[Device, list[tuple[Stream, Activity]]]:
    """The streams of each device, in their order."""
    devices: dict[Device, list[tuple[Stream, Activity]]] = {}
    for stream, done in streams.items():
        place = Device(stream.rank, stream.device)
        devices.setdefault(place, []).append((stream, done))
    return devices


@measure
def device_activity(run: Measures) -> dict[Device, Activity]:
    """Every device that did any work, all its streams together; else as ``stream_activity``."""
    streams = by_device(stream_activity(run))
    return {device: _together([done for _, done in its]) for device, its in streams.items()}


@measure
def calls_by_device(run: Measures) -> dict[tuple[int, str], slice | Int64]:
    """The rows of ``collectives`` on every device that did any work."""
    called = run.rows("collectives")
    places = rows_by(called.ints("rank"), called.coded("device"))
    return {
        device: in_a_row(places[device]) if device in places else slice(0)
        for device in device_activity(run)
    }


def _together(parts: Sequence[Activity]) -> Activity:
    if len(parts) == 1:
        return parts[0]
    kinds = {kind for part in parts for kind in part.when}
    if any(part.compute is None for part in parts):
        kinds.discard("compute")
    return Activity(
        events=sum((Counter(part.events) for part in parts), Counter()),
        start_ns=min(part.start_ns for part in parts),
        end_ns=max(part.end_ns for part in parts),
        when={kind: Times.of(*united(*(part.set_of(kind) for part in parts))) for kind in kinds},
    )


def device_order(device: str) -> tuple[str, int, str]:
    """By what devices are sorted: cuda:10 behind cuda:9."""
    kind, _, number = device.partition(":")
    return kind, len(number), number


class _Part(Struct, frozen=True):
    """The events of one kind on one stream."""

    events: int
    start_ns: int
    end_ns: int
    when: Times


def _parts(its: Any) -> Iterator[tuple[Stream, str, _Part]]:
    """The rows of ``rank_activity``."""
    ends = np.cumsum(its["intervals"])
    begins = ends - its["intervals"]
    names = its["device"].decoded(), its["kind"].decoded()
    columns = (
        *(its[name] for name in ("rank", "stream", "events", "start_ns", "end_ns")),
        begins,
        ends,
    )
    times = its.packed["begin_ns"], its.packed["until_ns"]
    rows = zip(*names, *(column.tolist() for column in columns), strict=True)
    for device, kind, rank, stream, events, start_ns, end_ns, begin, end in rows:
        when = (structs.replace(each, above=each.above[begin:end]) for each in times)
        yield Stream(rank, device, stream), kind, _Part(events, start_ns, end_ns, Times(*when))


def _merged(parts: dict[str, _Part], *, has_compute: bool) -> Activity:
    calls = parts.pop("call", None)
    when = {kind: part.when for kind, part in parts.items()}
    if calls:
        # No part of an array that holds the calls as well is kept.
        when = {kind: Times.of(*its.values) for kind, its in when.items()}
        if "compute" in when:
            compute = subtract(when["compute"].values, calls.when.values)
            when["compute"] = Times.of(*compute)
    if not has_compute:
        when.pop("compute", None)
    elif "compute" not in when:
        when["compute"] = Times.of(*NEVER)
    return Activity(
        events={kind: part.events for kind, part in parts.items()},
        start_ns=min(part.start_ns for part in parts.values()),
        end_ns=max(part.end_ns for part in parts.values()),
        when=when,
    )


def _order(item: tuple[Stream, object]) -> tuple[int, tuple[str, int, str], int]:
    rank, device, stream = item[0]
    return rank, device_order(device), stream
