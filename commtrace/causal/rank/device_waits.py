"""What the work of a GPU, and the host, waited for on other streams."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, distinct, least
from commtrace.causal.rank.device_work import ROUNDING_NS, DeviceWork, Numbered
from commtrace.causal.rank.moments import Moments
from commtrace.kernels import is_launch
from commtrace.table import Rows

__all__ = [
    "NEAR_NS",
    "WAKES_NS",
    "Pairs",
    "Resumptions",
    "awaited_at_once",
    "collective_waits",
    "recorded_waits",
    "resumptions",
    "told_nothing",
]

NEAR_NS = 6_000
"""What starts this soon after another stream's end has waited for it."""
WAKES_NS = 15_000
"""The host resumes this soon after the end that it waited for."""

Pairs = tuple[Int64, Int64]
"""Rows of ``DeviceWork`` that ended, and of what waited for each to start or resume."""

_CLOCKS_NS = 10_000  # that of a GPU may be off by
_AT_ONCE_NS = 100_000  # from recording its end: a wait later on is for what was called before
_SYNCHRONISES = re.compile(r"(?:cuda|cu|hip)(?:\w+Synchronize|(?:Mem|Host)?Free)")
_RETURNS = re.compile(r"\w+Async")
_OF_EVENT = re.compile(r"(?:cuda|cu|hip)EventSynchronize")
_NONE = np.empty(0, dtype=np.int64)


def recorded_waits(work: DeviceWork, synchronisations: Rows) -> Pairs:
    """What streams were told to wait for, where the profiler recorded it.

    The first work that a stream was given behind its wait starts behind the last that the
    other stream had been given when the event was recorded.
    """
    its = _Told.of(work, synchronisations)
    return _existing(its.ended, work.launched.next(its.waits, its.called_ns))


class _Told(Struct, frozen=True):
    """Recorded waits: which stream ``waits``, from when it is told, for the ``ended`` of another.

    That is the last row of work that the other had been given when the event was recorded.
    """

    waits: Int64
    awaited: Int64
    called_ns: Int64
    ended: Int64

    @classmethod
    def of(cls, work: DeviceWork, synchronisations: Rows) -> _Told:
        is_wait = synchronisations.coded("kind").being("Stream Wait Event")
        waits = work.stream_numbers(synchronisations, "stream")
        awaited = work.stream_numbers(synchronisations, "awaited_stream")
        rows = np.flatnonzero(is_wait & (waits >= 0) & (awaited >= 0) & (waits != awaited))
        called = synchronisations.ints("start_ns")[rows]
        recorded = synchronisations.ints("recorded_ns")[rows]
        ended = work.launched.last(awaited[rows], np.where(recorded == NULL, called, recorded))
        return cls(waits[rows], awaited[rows], called, ended)

    def before(self, stream: int, waiting: Int64, until_ns: Int64) -> Int64:
        """What of a stream others had been told last to wait for, until a time; else -1."""
        its = np.flatnonzero(self.awaited == stream)
        last = Moments(self.waits[its], self.called_ns[its]).last(waiting, until_ns)
        return np.append(self.ended[its], -1)[last]


def told_nothing(work: DeviceWork, synchronisations: Rows) -> Bool:
    """Which work nothing told to wait for another stream, since what its stream was given before.

    On streams whose waits the profiler recorded, from the first on. Not what no launch is known of,
    nor a CUDA graph's, whose own order is not recorded. PyTorch 2.11 does not say for whom.
    """
    waits = work.stream_numbers(synchronisations, "stream")
    rows = np.flatnonzero(synchronisations.coded("kind").being("Stream Wait Event") & (waits >= 0))
    called = synchronisations.ints("start_ns")[rows]
    first = least(waits[rows], called, work.streams.values.size)
    alone = (work.thread >= 0) & (work.launch_ns >= first[work.stream])
    told = work.launched.next(waits[rows], called)
    alone[told[told >= 0]] = False
    order = np.lexsort((work.launch_ns, work.thread))
    same = (np.diff(work.thread[order]) == 0) & (np.diff(work.launch_ns[order]) == 0)
    alone[order[1:][same]] = alone[order[:-1][same]] = False
    return alone


def collective_waits(work: DeviceWork, steps: Rows) -> Pairs:
    """What collectives on a stream of their own waited for, as PyTorch makes them wait.

    That is what had been given, when they were called, to the stream that was current then:
    the one that the same thread used before, under the same label if there is one. Copies
    without a label tell nothing: data loaders have a stream for theirs.
    """
    rows = np.flatnonzero((work.thread >= 0) & work.communicates)
    called = work.launch_ns[rows] - 1
    return _existing(work.launched.last(_current(work, steps, rows), called), rows)


def awaited_at_once(work: DeviceWork, steps: Rows, synchronisations: Rows) -> Pairs:
    """What waited for collectives that the stream which called them waits for at once.

    Of the waits that PyTorch makes a stream enter a trace keeps the calls. An event recorded
    right behind a collective's launch, and a wait right behind that, are of it, but where others
    of its kernel that were called before are to be waited for, or of a message any others: the wait
    can be for one of these, as for what was prefetched.
    """
    kind, thread = synchronisations.coded("kind"), synchronisations.ints("thread")
    calls = np.flatnonzero(kind.being("Event Record") | kind.being("Stream Wait Event"))
    known = np.flatnonzero(work.thread >= 0)
    row = np.append(known, np.full(calls.size, -1))
    waits = np.append(np.zeros(known.size, np.bool_), kind.being("Stream Wait Event")[calls])
    on = np.append(work.thread[known], work.threads.number(thread[calls]))
    time_ns = np.append(work.launch_ns[known], synchronisations.ints("start_ns")[calls])
    order = np.lexsort((time_ns, on))
    row, waits, on, time_ns = row[order], waits[order], on[order], time_ns[order]
    communicates = (row >= 0) & np.append(work.communicates, False)[row]
    its = communicates[:-2] & (row[1:-1] < 0) & ~waits[1:-1] & waits[2:]
    its &= (on[:-2] == on[2:]) & (time_ns[2:] - time_ns[1:-1] <= _AT_ONCE_NS)
    name = np.where(np.append(work.exchanges, False)[row], -1, np.append(work.name, 0)[row])
    for one in distinct(name[:-2][its]):
        launched = communicates & (name == one) if one >= 0 else communicates
        its &= ((name != one) | (_left_to_wait_for(launched, communicates, waits, on) == 0))[:-2]
    at = np.flatnonzero(its)
    current = _current(work, steps, row[at])
    return _existing(row[at], work.launched.next(current, time_ns[at + 2]))


def _left_to_wait_for(launched: Bool, communicates: Bool, waits: Bool, on: Int64) -> Int64:
    """How many of these launches on a thread nothing has waited for before each of its calls.

    A wait right before what ``communicates`` is that of its stream for what was launched before.
    """
    waits = waits & ~np.append(communicates[1:], False)
    change = launched.astype(np.int64) - waits
    left = np.zeros_like(change)
    for its in np.split(np.arange(on.size), np.flatnonzero(np.diff(on)) + 1):
        total = np.cumsum(change[its]) - change[its]
        left[its] = total - np.minimum.accumulate(np.minimum(total, 0))
    return left


def _current(work: DeviceWork, steps: Rows, rows: Int64) -> Int64:
    """The stream that was current when collectives were called; -1 if unknown, or their own."""
    place, labelled = _places(work, steps)
    other = (work.thread >= 0) & ~work.communicates & ((work.table == 0) | labelled)
    other = np.flatnonzero(other)
    called = work.launch_ns[rows] - 1
    there = Moments(place[other], work.launch_ns[other]).last(place[rows], called)
    anywhere = Moments(work.thread[other], work.launch_ns[other]).last(work.thread[rows], called)
    current = np.append(work.stream[other], -1)[np.where(there >= 0, there, anywhere)]
    return np.where(current == work.stream[rows], -1, current)


class Resumptions(Struct, frozen=True):
    """Calls at whose end the host had waited for a GPU.

    ``row`` is that of ``blocking_calls``. ``ended`` and ``begun`` pair rows of ``DeviceWork`` with
    numbers, from 0, of the calls here that waited for their end or for their start.
    """

    row: Int64
    thread: Int64
    start_ns: Int64
    end_ns: Int64
    ended: Pairs
    begun: Pairs


def resumptions(work: DeviceWork, calls: Rows, synchronisations: Rows) -> Resumptions:
    """Calls that synchronise, or copy pageable memory, or end when work on a GPU has ended.

    A copy from pageable memory waits for its start, since then the host feeds it. Others wait for
    the last that every stream had been given, where that has ended: before the copy, if they
    are one to pageable memory. A launch waited for the last that had ended, which made room. A
    synchronisation whose stream is known waits for that alone, and for what that had been told to
    wait for, as torch.distributed.barrier does.
    """
    start_ns, end_ns = calls.when()
    thread = work.threads.number(calls.ints("thread"))
    copy = _pageable_copy(work, thread, start_ns)
    is_copy = copy >= 0
    # Some drivers return from a copy to pageable memory at once: what synchronises waits for it.
    is_over = np.append(work.end_ns, NULL)[copy] <= end_ns + _CLOCKS_NS
    to_host = np.append(work.to_host, False)[copy] & is_over
    begins = is_copy & ~np.append(work.to_host, False)[copy]
    begins &= np.append(work.start_ns, NULL)[copy] < end_ns
    asks, of_event = _named(calls, _SYNCHRONISES), _named(calls, _OF_EVENT)
    only = np.where(asks, work.stream_numbers(calls, "stream"), -1)
    room = calls.coded("name").where(is_launch)
    given = np.where(of_event, _recorded_before(calls, synchronisations), start_ns)
    until = np.where(to_host, np.append(work.end_ns, NULL)[copy], end_ns)
    late = until + np.where(to_host, 0, ROUNDING_NS)  # what rounding puts behind the call's end
    latest, told = np.full(start_ns.size, NULL), _Told.of(work, synchronisations)
    awaited, held = [_NONE], [_NONE]
    for stream in range(work.streams.values.size):
        every = np.full(start_ns.size, stream)
        last = work.launched.last(every, given)
        last = np.where((only < 0) | (only == stream), last, told.before(stream, only, start_ns))
        last = np.where(of_event | room, np.minimum(last, work.ended.last(every, end_ns)), last)
        began, ended = (np.append(its, NULL)[last] for its in (work.start_ns, work.end_ns))
        over = (ended <= until) | ((ended <= late) & (began < until))
        waits = (last >= 0) & over
        waits &= to_host | ~is_copy
        latest = np.where(waits, np.maximum(latest, ended), latest)
        awaited.append(last[waits])
        held.append(np.flatnonzero(waits))
    at_an_end = ~_named(calls, _RETURNS) & (latest > start_ns) & (end_ns - latest <= WAKES_NS)
    kept = np.flatnonzero(asks | to_host | begins | at_an_end | room)
    number = Numbered(kept)
    return Resumptions(
        kept,
        thread[kept],
        start_ns[kept],
        end_ns[kept],
        _existing(np.concatenate(awaited), number.number(np.concatenate(held))),
        _existing(copy[begins], number.number(np.flatnonzero(begins))),
    )


def _recorded_before(calls: Rows, synchronisations: Rows) -> Int64:
    """When the event that each call waits for had been recorded; the call's start if unknown."""
    correlation = synchronisations.ints("correlation")
    recorded = synchronisations.ints("recorded_ns")
    known = np.flatnonzero((correlation != NULL) & (recorded != NULL))
    order = known[np.argsort(correlation[known], kind="stable")]
    at = Numbered(correlation[order]).number(calls.ints("correlation"))
    return np.where(at >= 0, np.append(recorded[order], NULL)[at], calls.ints("start_ns"))


def _pageable_copy(work: DeviceWork, thread: Int64, start_ns: Int64) -> Int64:
    """The copy from or to pageable memory that each call launches; -1 for others."""
    rows = np.flatnonzero(work.pageable & (work.thread >= 0))
    last = Moments(work.thread[rows], work.launch_ns[rows]).last(thread, start_ns)
    copy = np.append(rows, -1)[last]
    return np.where(np.append(work.launch_ns, NULL)[copy] == start_ns, copy, -1)


def _places(work: DeviceWork, steps: Rows) -> tuple[Int64, Bool]:
    """A number for each thread and innermost label under which work was launched; if any was."""
    label = steps.coded("label")
    thread = work.threads.number(steps.ints("thread"))
    start_ns, end_ns = steps.when()
    rows = np.flatnonzero((label.codes >= 0) & (thread >= 0))
    rows = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]  # what encloses comes first
    thread, start_ns, end_ns = thread[rows], start_ns[rows], end_ns[rows]
    starts, ends = Moments(thread, start_ns), Moments(thread, end_ns)
    depth = starts.place - ends.count(thread, start_ns)
    deep = int(depth.max(initial=0)) + 2
    open_now = starts.count(work.thread, work.launch_ns) - ends.count(work.thread, work.launch_ns)
    inner = Moments(thread * deep + depth, start_ns).last(
        np.where(open_now > 0, work.thread * deep + open_now, -1), work.launch_ns
    )
    code = np.append(label.codes[rows], np.int32(-1))[inner]
    place = work.thread * (len(label.names) + 1) + code
    return Numbered.of(place).number(place), code >= 0


def _existing(ended: Int64, held: Int64) -> Pairs:
    both = (ended >= 0) & (held >= 0)
    return ended[both], held[both]


def _named(calls: Rows, pattern: re.Pattern[str]) -> Bool:
    return calls.coded("name").where(lambda one: pattern.match(one) is not None)
