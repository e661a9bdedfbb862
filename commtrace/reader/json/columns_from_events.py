"""Events as columns: the many as arrays, the few that communicate with their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from commtrace import comms, kernels
from commtrace.arrays import NULL, Int64
from commtrace.reader.json import arguments
from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.categories import GPU, KINDS, ON_HOST
from commtrace.reader.json.columns import Names, Numbers, decoded_integers, integers
from commtrace.reader.json.decoded_event import KIND_OF, Event, is_any
from commtrace.reader.json.events import (
    Arguments,
    Call,
    Gpu,
    Hosted,
    Launches,
    Synchronisations,
)
from commtrace.reader.json.times import nanoseconds
from commtrace.reader.json.unread import Unread

__all__ = ["Collector"]

_TIMES = ("start_ns", "duration_ns")
_ON_GPU = ("device", "stream", "correlation", "size_bytes", "from_device", "to_device")
_CALLED = ("correlation", "thread")
_AWAITED = ("device", "stream", "correlation", "event", "awaited_stream", "record_correlation")
_YEAR_NS = 366 * 86_400 * 10**9
_BATCH = 1024  # fewer would waste numpy's time, more the cache's
_WRONG_ARGUMENTS = "whose arguments have the wrong types"
_IMPOSSIBLE = "with a negative size or device, or a group of no ranks"

_T = TypeVar("_T")
Mask = npt.NDArray[np.bool_]
Times = Callable[[list[Any]], Int64]
"""Microseconds, as an event has them, to nanoseconds."""


class _Batch(Struct, frozen=True):
    """Events of one kind, with their times."""

    events: list[Event]
    names: list[str | None]
    start_ns: Int64
    duration_ns: Int64
    thread: Int64

    def only(self, rows: Mask) -> _Batch:
        if rows.all():
            return self
        events = [event for event, keep in zip(self.events, rows.tolist(), strict=True) if keep]
        names = [event.name for event in events]
        return _Batch(events, names, self.start_ns[rows], self.duration_ns[rows], self.thread[rows])


_Found = tuple[Event, Call]
"""What communicates; its time is without the trace's base."""


class _Hosts:
    """What becomes a ``Hosted``."""

    def __init__(self) -> None:
        self.names, self.numbers = Names(), Numbers(("thread", *_TIMES))

    def extend(self, batch: _Batch) -> None:
        self.names.extend(batch.names)
        self.numbers.extend(batch.start_ns, duration_ns=batch.duration_ns, thread=batch.thread)

    def hosted(self, base_ns: int) -> Hosted:
        return Hosted(name=self.names.coded(), **self.numbers.joined(base_ns))

    def join(self, later: _Hosts) -> None:
        self.names.join(later.names)
        self.numbers.join(later.numbers)


class Faults(Struct):
    """How many events have something wrong with them, and what it is with the first."""

    count: int = 0
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, count: int, reason: str) -> None:
        if count:
            self.count += count
            self.reason = self.reason or reason

    def join(self, later: Faults) -> None:
        self.add(later.count, later.reason or "")


class Collector:
    """Takes a file's events and makes the columns of a ``Scan``.

    ``left_out`` are the events that were not taken, ``unbelieved`` those that were, but for
    arguments that cannot be, ``unread`` those of categories unknown here.
    """

    def __init__(self, accelerators: Accelerators, times: Times = nanoseconds) -> None:
        self.accelerators = accelerators
        self.left_out, self.unbelieved = Faults(), Faults()
        self.unread = Unread(times)
        self._times = times
        self._pending: list[Event] = []
        self._keep_operators = True
        self._operators, self._annotations = _Hosts(), _Hosts()
        self._gpu = Numbers((*_ON_GPU, *_TIMES))
        self._gpu_categories, self._gpu_names = Names(), Names()
        self._launches, self._launch_names = Numbers((*_CALLED, *_TIMES)), Names()
        self._syncs, self._sync_names = Numbers((*_AWAITED, *_TIMES)), Names()
        self._calls: list[Call] = []

    @property
    def has_gpu(self) -> bool:
        """Whether any event so far was on a GPU."""
        return self._gpu.rows > 0

    def drop_operators(self) -> None:
        """Keep no CPU operators but those that communicate."""
        self._keep_operators = False
        self._operators = _Hosts()

    def take(self, events: list[Event]) -> None:
        """Add some events, in the file's order."""
        self._pending += [
            event
            for event in events
            if (kind := KIND_OF[type(event)])
            and (kind != "cpu_op" or self._keep_operators or _has_use(event.name))
        ]
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
                self.left_out.add(sum(not event.ph for event in its), "without a phase")
                kinds[kind] = [event for event in its if event.ph == "X"]
        return kinds

    def gpu(self, base_ns: int) -> Gpu:
        """The GPU events; ``base_ns`` is added to every start."""
        return Gpu(
            category=self._gpu_categories.coded(),
            name=self._gpu_names.coded(),
            **self._gpu.joined(base_ns),
        )

    def launches(self, base_ns: int) -> Launches:
        """The runtime and driver calls that carry a correlation."""
        return Launches(name=self._launch_names.coded(), **self._launches.joined(base_ns))

    def synchronisations(self, base_ns: int) -> Synchronisations:
        """What waited for the GPU, where the profiler was asked to record it."""
        return Synchronisations(name=self._sync_names.coded(), **self._syncs.joined(base_ns))

    def operators(self, base_ns: int) -> Hosted:
        """The CPU operators, unless they were dropped."""
        return self._operators.hosted(base_ns)

    def annotations(self, base_ns: int) -> Hosted:
        """The annotations on the host."""
        return self._annotations.hosted(base_ns)

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
        self.left_out.join(later.left_out)
        self.unbelieved.join(later.unbelieved)
        self._operators.join(later._operators)
        self._annotations.join(later._annotations)
        self._gpu.join(later._gpu)
        self._gpu_categories.join(later._gpu_categories)
        self._gpu_names.join(later._gpu_names)
        self._launches.join(later._launches)
        self._launch_names.join(later._launch_names)
        self._syncs.join(later._syncs)
        self._sync_names.join(later._sync_names)

    def _sound(self, events: list[Event], on_host: bool) -> _Batch:
        """The events with their times, but for those that lack something."""
        names = [event.name for event in events]
        batch = _Batch(
            events,
            names,
            self._times([event.ts for event in events]),
            self._times([event.dur for event in events]),
            integers([event.tid for event in events]),
        )
        fits = (batch.start_ns != NULL) & (batch.duration_ns >= 0)
        fits &= batch.duration_ns <= _YEAR_NS
        if on_host:
            fits &= batch.thread != NULL
        if not all(names) and None in names:
            fits &= np.array([name is not None for name in names], dtype=np.bool_)
        if fits.all():
            return batch
        self.left_out.add(int((~fits).sum()), _lack(batch, int(fits.argmin())))
        return batch.only(fits)

    def _decoded(self, batch: _Batch, decoder: arguments.Decoder[_T]) -> tuple[_Batch, list[_T]]:
        """The events whose arguments have the right types, and these."""
        decoded = decoder.of([event.args for event in batch.events])
        known = [args for args in decoded if args is not None]
        if len(known) == len(decoded):
            return batch, known
        self.left_out.add(len(decoded) - len(known), _WRONG_ARGUMENTS)
        return batch.only(np.array([args is not None for args in decoded], dtype=np.bool_)), known

    def _take_launches(self, events: list[Event]) -> None:
        if not events:
            return
        batch, arguments_of = self._decoded(self._sound(events, on_host=True), arguments.LAUNCH)
        correlation = decoded_integers([args.correlation for args in arguments_of])
        joined = correlation != NULL
        batch = batch.only(joined)
        self._launch_names.extend(batch.names)
        self._launches.extend(
            batch.start_ns,
            duration_ns=batch.duration_ns,
            thread=batch.thread,
            correlation=correlation[joined],
        )

    def _take_synchronisations(self, events: list[Event]) -> None:
        if not events:
            return
        batch, known = self._decoded(self._sound(events, on_host=False), arguments.SYNCHRONISATION)
        self._sync_names.extend(batch.names)
        columns = {
            name: decoded_integers([getattr(args, name) for args in known]) for name in _AWAITED
        }
        self._syncs.extend(
            batch.start_ns,
            duration_ns=batch.duration_ns,
            **{name: np.where(its < 0, NULL, its) for name, its in columns.items()},
        )

    def _take_gpu(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        batch, arguments_of = self._decoded(self._sound(events, on_host=False), arguments.GPU)
        first = self._gpu.rows
        in_device, from_device, to_device, size = self._believed(
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
        self._gpu_names.extend(batch.names)
        self._gpu.extend(
            batch.start_ns,
            duration_ns=batch.duration_ns,
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

    def _believed(self, *columns: Int64) -> list[Int64]:
        """Columns of what is never negative."""
        negative = [(column < 0) & (column != NULL) for column in columns]
        self.unbelieved.add(int(np.any(negative, axis=0).sum()), _IMPOSSIBLE)
        return [np.where(odd, NULL, c) for odd, c in zip(negative, columns, strict=True)]

    def _take_operators(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        calls = _that(comms.is_communication_call, {event.name for event in events})
        if not self._keep_operators:
            events = [event for event in events if event.name in calls]
        batch = self._sound(events, on_host=True)
        if self._keep_operators:
            self._operators.extend(batch)
        return self._named(batch, calls, "cpu_op")

    def _take_annotations(self, events: list[Event]) -> Iterable[_Found]:
        if not events:
            return ()
        batch = self._sound(events, on_host=True)
        self._annotations.extend(batch)
        calls = _that(comms.is_communication_annotation, {*batch.names})
        return self._named(batch, calls, "user_annotation")

    def _named(self, batch: _Batch, calls: set[str | None], category: str) -> Iterable[_Found]:
        if not calls:
            return ()
        rows = [row for row, name in enumerate(batch.names) if name in calls]
        return self._found(batch, rows, category)

    def _found(
        self, batch: _Batch, rows: list[int], category: str, first: int | None = None
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
            map(self._possible, decoded),
            repeat(-1) if first is None else [first + row for row in rows],
        )
        return zip(events, calls, strict=True)

    def _possible(self, known: Arguments | None) -> Arguments:
        if known is None:
            self.unbelieved.add(1, _WRONG_ARGUMENTS)
            return Arguments()
        known = arguments.of_today(known)
        args = arguments.possible(known)
        if args is not known:
            self.unbelieved.add(1, _IMPOSSIBLE)
        return args


@lru_cache(maxsize=65536)
def _has_use(name: str | None) -> bool:
    """Whether operators of a name are read, also where there is a GPU."""
    return name is not None and (comms.is_communication_call(name) or _annotates(name))


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


def _lack(batch: _Batch, row: int) -> str:
    if batch.events[row].name is None:
        return "without a name"
    if batch.start_ns[row] == NULL:
        return "whose ts is not a number"
    if batch.duration_ns[row] == NULL:
        return "whose dur is not a number"
    if batch.duration_ns[row] < 0:
        return "of negative duration"
    if batch.duration_ns[row] > _YEAR_NS:
        return "that lasts over a year"
    return "whose tid is not an integer"


def _first(*columns: Int64) -> Int64:
    """Row by row, the first value that is known."""
    first, *others = columns
    for other in others:
        first = np.where(first == NULL, other, first)
    return first
