"""Events as columns: the many as arrays, the few that communicate with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import compress, repeat
from typing import Any

import numpy as np
from msgspec.structs import replace

from commtrace import comms, kernels
from commtrace.arrays import NULL, Int64
from commtrace.nesting import outermost
from commtrace.reader.json import arguments
from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.categories import GPU, KINDS, ON_HOST
from commtrace.reader.json.checked_events import Batch, Checked, Times
from commtrace.reader.json.columns import Names, Numbers, decoded_integers, integers
from commtrace.reader.json.decoded_event import KIND_OF, Event, is_any
from commtrace.reader.json.events import (
    Call,
    Gpu,
    Hosted,
    Launches,
    Synchronisations,
)
from commtrace.reader.json.times import nanoseconds
from commtrace.reader.json.unread import Unread

__all__ = ["Collector"]

_ON_GPU = ("device", "stream", "correlation", "size_bytes", "from_device", "to_device")
_CALLED = ("correlation", "thread")
_AWAITED = ("device", "stream", "correlation", "event", "awaited_stream", "record_correlation")
_BATCH = 1024  # fewer would waste numpy's time, more the cache's
_MANY = 65_536  # rows: fewer are not worth a look at who calls whom

_Found = tuple[Event, Call]
"""What communicates; its time is without the trace's base."""


class _Columns:
    """Names of events, and integers: their times and what else is known of them."""

    def __init__(self, *integers: str) -> None:
        self._names, self._numbers = Names(), Numbers(("start_ns", "duration_ns", *integers))

    @property
    def rows(self) -> int:
        return self._numbers.rows

    def extend(self, batch: Batch, **integers: Int64) -> None:
        self._names.extend(batch.names)
        self._numbers.extend(batch.start_ns, duration_ns=batch.duration_ns, **integers)

    def joined(self, base_ns: int) -> dict[str, Any]:
        return {"name": self._names.coded(), **self._numbers.joined(base_ns)}

    def outermost(self) -> _Columns:
        """The rows that no others of their threads enclose; of host events."""
        its = self._numbers.joined(0)
        top = outermost(its["thread"], its["start_ns"], its["duration_ns"])
        kept = _Columns("thread")
        kept._names, kept._numbers = self._names.only(top), self._numbers.only(top)
        return kept

    def join(self, later: _Columns) -> None:
        self._names.join(later._names)
        self._numbers.join(later._numbers)


class Collector:
    """Takes a file's events and makes the columns of a ``Scan``.

    ``checked`` counts those with faults; ``unread`` are those of categories unknown here.
    """

    def __init__(self, accelerators: Accelerators, times: Times = nanoseconds) -> None:
        self.accelerators = accelerators
        self.checked = Checked(times)
        self.unread = Unread(times)
        self._pending: list[Event] = []
        self._operators, self._annotations = _Columns("thread"), _Columns("thread")
        self._most_operators = _MANY  # beside a GPU, until those that others call are left out
        self._gpu, self._gpu_categories = _Columns(*_ON_GPU), Names()
        self._launches, self._synchronisations = _Columns(*_CALLED), _Columns(*_AWAITED)
        self._calls: list[Call] = []

    @property
    def has_gpu(self) -> bool:
        """Whether any event so far was on a GPU."""
        return self._gpu.rows > 0

    def take(self, events: list[Event]) -> None:
        """Add some events, in the file's order."""
        self._pending += compress(events, map(KIND_OF.__getitem__, map(type, events)))
        if len(self._pending) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Have all events so far in the columns."""
        pending, self._pending = self._pending, []
        types: set[Any] = {*map(type, pending)}
        any_category = is_any(types)
        categories = {its.cat for its in (pending if any_category else types)}
        events = self.accelerators.translated(pending, categories)
        kinds = self._by_kind(events, any_category)
        self.unread.add([event for event in kinds[None] if event.ph == "X"])
        self._take_launches(kinds["launch"])
        self._take_synchronisations(kinds["synchronisation"])
        found = [
            *self._take_gpu(kinds["gpu"]),
            *self._take_operators(kinds["cpu_op"]),
            *self._take_annotations(kinds["user_annotation"]),
        ]
        if len({call.category for _, call in found}) > 1:
            calls = {id(event): call for event, call in found}
            self._calls += [calls[event] for event in map(id, events) if event in calls]
        else:
            # An event's text keeps all that it was cut from: only the call is kept.
            self._calls += [call for _, call in found]

    def _by_kind(self, events: list[Event], any_category: bool) -> dict[str | None, list[Event]]:
        """The complete events of each kind, and all of unknown categories."""
        kinds: dict[str | None, list[Event]] = {kind: [] for kind in (None, *KINDS.values())}
        if any_category:
            for event in events:
                kinds[KINDS.get(event.cat)].append(event)
        else:
            for event in events:
                kinds[KIND_OF[type(event)]].append(event)
        names = {event.name for event in kinds["cpu_op"]}
        if _that(_annotates, names):
            kinds["cpu_op"], kinds["user_annotation"] = _annotations_apart(events)
        if not any_category:  # all of them are complete
            return kinds
        for kind, its in kinds.items():
            if kind is not None and {event.ph for event in its} - {"X"}:
                self.checked.left_out.add(sum(not event.ph for event in its), "without a phase")
                kinds[kind] = [event for event in its if event.ph == "X"]
        return kinds

    def gpu(self, base_ns: int) -> Gpu:
        """The GPU events; ``base_ns`` is added to every start."""
        return Gpu(category=self._gpu_categories.coded(), **self._gpu.joined(base_ns))

    def launches(self, base_ns: int) -> Launches:
        """The runtime and driver calls that carry a correlation."""
        return Launches(**self._launches.joined(base_ns))

    def synchronisations(self, base_ns: int) -> Synchronisations:
        """What waited for the GPU, where the profiler was asked to record it."""
        return Synchronisations(**self._synchronisations.joined(base_ns))

    def operators(self, base_ns: int) -> Hosted:
        """The CPU operators; beside a GPU those that no others call."""
        its = self._operators.outermost() if self.has_gpu else self._operators
        return Hosted(**its.joined(base_ns))

    def annotations(self, base_ns: int) -> Hosted:
        """The annotations on the host."""
        return Hosted(**self._annotations.joined(base_ns))

    def calls(self, base_ns: int) -> tuple[Call, ...]:
        """The communication, in the file's order."""
        if not base_ns:
            return tuple(self._calls)
        moved = (replace(call, start_ns=call.start_ns + base_ns) for call in self._calls)
        return tuple(moved)

    def join(self, later: Collector) -> None:
        """Take what another took of the events behind these."""
        rows = self._gpu.rows
        self._calls += [
            call if call.gpu_row < 0 else replace(call, gpu_row=call.gpu_row + rows)
            for call in later._calls
        ]
        self.unread.join(later.unread)
        self.checked.join(later.checked)
        self._operators.join(later._operators)
        self._annotations.join(later._annotations)
        self._gpu.join(later._gpu)
        self._gpu_categories.join(later._gpu_categories)
        self._launches.join(later._launches)
        self._synchronisations.join(later._synchronisations)

    def _take_launches(self, events: list[Event]) -> None:
        if not events:
            return
        batch, arguments_of = self.checked.decoded(events, arguments.LAUNCH, on_host=True)
        correlation = decoded_integers([args.correlation for args in arguments_of])
        joined = correlation != NULL
        batch = batch.only(joined)
        self._launches.extend(batch, thread=batch.thread, correlation=correlation[joined])

    def _take_synchronisations(self, events: list[Event]) -> None:
        if not events:
            return
        batch, known = self.checked.decoded(events, arguments.SYNCHRONISATION, on_host=False)
        columns = {
            name: decoded_integers([getattr(args, name) for args in known]) for name in _AWAITED
        }
        not_negative = {name: np.where(its < 0, NULL, its) for name, its in columns.items()}
        self._synchronisations.extend(batch, **not_negative)

    def _take_gpu(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        batch, arguments_of = self.checked.decoded(events, arguments.GPU, on_host=False)
        first = self._gpu.rows
        in_device, from_device, to_device, size = self.checked.believed(
            decoded_integers([args.in_device for args in arguments_of]),
            decoded_integers([args.from_device for args in arguments_of]),
            decoded_integers([args.to_device for args in arguments_of]),
            decoded_integers([args.size_bytes for args in arguments_of]),
        )
        pid = integers([event.pid for event in batch.events])
        device = decoded_integers([args.device for args in arguments_of])
        stream = decoded_integers([args.stream for args in arguments_of])
        categories = [GPU[event.cat] for event in batch.events]
        self._gpu_categories.extend(categories)
        self._gpu.extend(
            batch,
            device=_first(device, in_device, pid),
            stream=_first(stream, batch.thread),
            correlation=decoded_integers([args.correlation for args in arguments_of]),
            size_bytes=size,
            from_device=from_device,
            to_device=to_device,
        )
        known = _that(kernels.is_communication, {*batch.names})
        each = zip(categories, batch.names, arguments_of, strict=True)
        rows = [
            row
            for row, (category, name, args) in enumerate(each)
            if category == "kernel" and (name in known or args.collective is not None)
        ]
        return self._found(batch, rows, "kernel", first)

    def _take_operators(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        calls = _that(comms.is_communication_call, {event.name for event in events})
        batch = self.checked.sound(events, on_host=True)
        self._operators.extend(batch, thread=batch.thread)
        if self.has_gpu and self._operators.rows > self._most_operators:
            self._operators = self._operators.outermost()
            self._most_operators = 2 * self._operators.rows + _MANY
        return self._named(batch, calls, "cpu_op")

    def _take_annotations(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        batch = self.checked.sound(events, on_host=True)
        self._annotations.extend(batch, thread=batch.thread)
        calls = _that(comms.is_communication_annotation, {*batch.names})
        return self._named(batch, calls, "user_annotation")

    def _named(self, batch: Batch, calls: set[str | None], category: str) -> Iterable[_Found]:
        if not calls:
            return ()
        rows = [row for row, name in enumerate(batch.names) if name in calls]
        return self._found(batch, rows, category)

    def _found(
        self, batch: Batch, rows: list[int], category: str, first: int | None = None
    ) -> Iterable[_Found]:
        """What communicates; of kernels, ``first`` is the row of the batch's first."""
        events = [batch.events[row] for row in rows]
        decoded = arguments.communication([event.args for event in events])
        calls = map(
            Call,
            repeat(category),
            [str(event.name) for event in events],
            batch.thread[rows].tolist(),
            batch.start_ns[rows].tolist(),
            batch.duration_ns[rows].tolist(),
            map(self.checked.possible, decoded),
            repeat(-1) if first is None else [first + row for row in rows],
        )
        return zip(events, calls, strict=True)


@lru_cache(maxsize=65536)
def _annotates(name: str) -> bool:
    """Whether an operator of a name would be an annotation today, as before 2022 it was not."""
    return name.startswith(comms.STEP_PREFIX) or comms.is_communication_annotation(name)


def _that(passes: Callable[[str], bool], names: set[str | None]) -> set[str | None]:
    """The names that pass a test."""
    return {name for name in names if name is not None and passes(name)}


def _annotations_apart(events: list[Event]) -> tuple[list[Event], list[Event]]:
    """Operators, and annotations: steps and NCCL's own are some, whatever their category."""
    kinds: dict[str, list[Event]] = {kind: [] for kind in ON_HOST}
    for event in events:
        kind = KINDS.get(event.cat)
        if kind == "cpu_op" and _annotates(event.name or ""):
            kind = "user_annotation"
        if kind in ON_HOST:
            kinds[kind].append(event)
    return kinds["cpu_op"], kinds["user_annotation"]


def _first(*columns: Int64) -> Int64:
    """Row by row, the first value that is known."""
    first, *others = columns
    for other in others:
        first = np.where(first == NULL, other, first)
    return first
