"""The nodes of one rank's graph, in topological order."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Int64
from commtrace.causal.rank.device_waits import Pairs, Resumptions
from commtrace.causal.rank.device_work import ROUNDING_NS, DeviceWork
from commtrace.causal.rank.moments import Moments

__all__ = ["CALL", "END", "LAUNCH", "RESUME", "START", "Nodes"]

LAUNCH, START, END, CALL, RESUME = range(5)
_DIGITS_NS = 2
"""What start and duration, each written to the nanosecond, may add to an end."""
_SILENT = 3
"""A thread was idle while the others did as many things as that, or more."""
_BLOCKING_CALLS = 2  # after the numbers of tables in ``DeviceWork``

# Of nodes at one time the order: what ends, then what follows, then what ends at once.
_ENDS, _RESUMES, _CALLS, _STARTS, _ENDS_AT_ONCE, _RESUMES_AT_ONCE = range(6)


class Nodes(Struct, frozen=True):
    """Nodes in topological order, and which of them are what.

    ``start``, ``end`` and ``launch`` have an entry for each row of ``DeviceWork``, -1 for an
    unknown launch; ``call`` and ``resume`` for each of ``Resumptions``. ``host`` are all on a host
    thread, and ``thread`` is theirs.
    """

    time_ns: Int64
    kind: Int64
    table: Int64
    row: Int64
    start: Int64
    end: Int64
    launch: Int64
    call: Int64
    resume: Int64
    host: Int64
    thread: Int64

    @classmethod
    def of(cls, work: DeviceWork, waits: Resumptions, awaited: Pairs) -> Nodes:
        """The starts and ends of some work, its launches, and the host's waits for it.

        ``awaited`` is work of which one is known to have waited for the other.
        """
        known = np.flatnonzero(work.thread >= 0)
        thread = np.append(work.thread[known], waits.thread)
        called_ns = np.append(work.launch_ns[known], waits.start_ns)
        first, moment = _moments(thread, called_ns)  # a call may be a launch, too
        each = (work.start_ns, work.end_ns, called_ns[first], waits.end_ns)
        resumes_ns = _resumes_before_calls(waits, thread[first], called_ns[first])
        ends_ns = _ends_before_resumes(work, waits, awaited, resumes_ns)
        order = np.lexsort(
            (
                np.concatenate(
                    (
                        np.full(work.start_ns.size, _STARTS),
                        np.where(ends_ns > work.start_ns, _ENDS, _ENDS_AT_ONCE),
                        np.full(first.size, _CALLS),
                        np.where(resumes_ns > waits.start_ns, _RESUMES, _RESUMES_AT_ONCE),
                    )
                ),
                np.concatenate((work.start_ns, ends_ns, called_ns[first], resumes_ns)),
            )
        )
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        start, end, points, resume = np.split(place, np.cumsum([its.size for its in each[:-1]]))
        launch = np.full(work.start_ns.size, -1)
        launch[known] = points[moment[: known.size]]
        kinds = (
            np.full(start.size, START),
            np.full(end.size, END),
            np.where(first < known.size, LAUNCH, CALL),
            np.full(resume.size, RESUME),
        )
        tables = np.append(work.table[known], np.full(resume.size, _BLOCKING_CALLS))
        rows = np.append(work.row[known], waits.row)
        is_wait = tables[known.size :]
        return cls(
            time_ns=np.concatenate(each)[order],
            kind=np.concatenate(kinds)[order],
            table=np.concatenate((work.table, work.table, tables[first], is_wait))[order],
            row=np.concatenate((work.row, work.row, rows[first], waits.row))[order],
            start=start,
            end=end,
            launch=launch,
            call=points[moment[known.size :]],
            resume=resume,
            host=np.append(points, resume),
            thread=np.append(thread[first], waits.thread),
        )

    def in_order(self) -> tuple[Int64, Int64]:
        """Each node of a host thread, and the next."""
        order = np.lexsort((self.host, self.thread))
        host, thread = self.host[order], self.thread[order]
        same = thread[1:] == thread[:-1]
        return host[:-1][same], host[1:][same]

    def handed_over(self) -> tuple[Int64, Int64]:
        """What other threads did last before one that had been idle went on, unless it waited."""
        order = np.argsort(self.host)
        host, thread = self.host[order], self.thread[order]
        place = np.arange(host.size)
        own = np.lexsort((place, thread))
        before = np.full(host.size, -1)
        before[own[1:]] = np.where(thread[own[1:]] == thread[own[:-1]], own[:-1], -1)
        idle = (place - before > _SILENT) & (self.kind[host] != RESUME)
        return host[place[idle] - 1], host[idle]


def _moments(thread: Int64, time_ns: Int64) -> tuple[Int64, Int64]:
    """The first row of each distinct moment of a thread, and the moment that each row is of."""
    order = np.lexsort((time_ns, thread))
    new = np.ones(order.size, dtype=np.bool_)
    new[1:] = (np.diff(thread[order]) != 0) | (np.diff(time_ns[order]) != 0)
    moment = np.empty_like(order)
    moment[order] = np.cumsum(new) - 1
    first: Int64 = order[new]
    return first, moment


def _resumes_before_calls(waits: Resumptions, thread: Int64, called_ns: Int64) -> Int64:
    """The ends of waits, not behind the next call of their thread but for real overlap."""
    after = Moments(thread, called_ns).next(waits.thread, waits.start_ns)
    next_ns = np.where(after >= 0, np.append(called_ns, NULL)[after], waits.end_ns)
    rounded = (next_ns < waits.end_ns) & (waits.end_ns <= next_ns + ROUNDING_NS)
    return np.where(rounded, next_ns, waits.end_ns)


def _ends_before_resumes(
    work: DeviceWork, waits: Resumptions, awaited: Pairs, resumes_ns: Int64
) -> Int64:
    """The ends, not behind what waited for them, nor behind the next start on their stream."""
    ends_ns = _ends_before_starts(work, awaited)
    ended, number = waits.ended
    np.minimum.at(ends_ns, ended, resumes_ns[number])
    return np.maximum(ends_ns, work.start_ns)


def _ends_before_starts(work: DeviceWork, awaited: Pairs) -> Int64:
    """The ends, not behind a start that followed them but for real overlap.

    That is the next on their stream, one that waited for them, or any that is as near as the last
    digits of start and duration leave open.
    """
    starts_ns = np.sort(work.start_ns)
    latest_ns = starts_ns[np.maximum(np.searchsorted(starts_ns, work.end_ns) - 1, 0)]
    ends_ns = np.where(work.end_ns - latest_ns <= _DIGITS_NS, latest_ns, work.end_ns)
    followed = (awaited, *((rows[:-1], rows[1:]) for rows in work.by_stream))
    ended, started = (np.concatenate(its) for its in zip(*followed, strict=True))
    over_ns = work.end_ns[ended] - work.start_ns[started]
    near = (over_ns > 0) & (over_ns <= ROUNDING_NS)
    np.minimum.at(ends_ns, ended[near], work.start_ns[started[near]])
    return ends_ns
