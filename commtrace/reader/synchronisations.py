"""Calls that block the host, and what waits for a GPU -> their tables."""

from __future__ import annotations

import re

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, among
from commtrace.kernels import is_launch
from commtrace.reader.correlation import rows_with, values_at
from commtrace.reader.gpu import device_names, named, selected
from commtrace.reader.host import Steps
from commtrace.reader.json.events import Scan
from commtrace.table import Coded, Columns

__all__ = ["blocking_calls", "synchronisations"]

_API = r"(?:cuda|cu|hip)"
_BLOCKING = re.compile(
    rf"{_API}(?:(?:Stream|Device|Ctx|Thread|Event)Synchronize|Memcpy"
    r"|(?:Mem)?(?:Alloc|Malloc|Free)(?!\w*Async)|(?:Mem)?Host(?:Alloc|Malloc|Free|(?:Unr|R)egister))"
)
_LONG_NS, _FULL = 50_000, 256  # a launch that waits for room, and how many wait to start then
_WAIT = re.compile(rf"{_API}StreamWaitEvent")
_RECORD = re.compile(rf"{_API}EventRecord")
_KINDS = ("Stream Wait Event", "Event Record")


def blocking_calls(scan: Scan, steps: Steps, rank: int) -> Columns:
    """The table of calls that can block the host."""
    calls, gpu, syncs = scan.launches, scan.gpu, scan.synchronisations
    blocking = _called(calls.name, _BLOCKING)
    blocking[_without_room(scan)] = True
    rows = _by_start(np.flatnonzero(blocking), calls.start_ns)
    correlation, start_ns = calls.correlation[rows], calls.start_ns[rows]
    copied = rows_with(correlation, gpu.correlation, gpu.start_ns)
    waited = rows_with(correlation, syncs.correlation, syncs.start_ns)
    awaited = np.where(syncs.stream == NULL, syncs.awaited_stream, syncs.stream)
    return {
        "rank": np.full(rows.size, rank),
        "thread": calls.thread[rows],
        "name": selected(calls.name, rows),
        "device": device_names(
            np.where(copied >= 0, values_at(gpu.device, copied), values_at(syncs.device, waited)),
            scan.device_type,
        ),
        "stream": np.where(copied >= 0, values_at(gpu.stream, copied), values_at(awaited, waited)),
        "start_ns": start_ns,
        "duration_ns": calls.duration_ns[rows],
        "correlation": correlation,
        "step": steps.containing(start_ns),
    }


def _without_room(scan: Scan) -> Int64:
    """The long launches while hundreds of others wait to start: their queue was full.

    It holds about a thousand entries, of which a launch takes one or two. Who is so far ahead
    delays nobody by what else may have held it up.
    """
    calls, gpu = scan.launches, scan.gpu
    long = (calls.duration_ns >= _LONG_NS) & named(calls.name, is_launch)
    rows = np.flatnonzero(long)
    if not rows.size:
        return rows
    # A graph's kernels have one launch.
    first = rows_with(calls.correlation, gpu.correlation, gpu.start_ns)
    known = first >= 0
    launched, started = np.sort(calls.start_ns[known]), np.sort(gpu.start_ns[first[known]])
    end_ns = calls.start_ns[rows] + calls.duration_ns[rows]
    waiting = np.searchsorted(launched, end_ns) - np.searchsorted(started, end_ns)
    return rows[waiting >= _FULL]


def synchronisations(scan: Scan, steps: Steps, rank: int) -> Columns:
    """The table of waits and recorded events.

    Of a call that the profiler recorded as a synchronisation, too, that one alone.
    """
    calls, syncs = scan.launches, scan.synchronisations
    waits, records = _called(calls.name, _WAIT), _called(calls.name, _RECORD)
    alone = np.flatnonzero((waits | records) & ~among(calls.correlation, syncs.correlation))
    its_call = rows_with(syncs.correlation, calls.correlation, calls.start_ns)
    called = np.concatenate((its_call, alone))
    recorded = rows_with(syncs.record_correlation, calls.correlation, calls.start_ns)
    kind = np.concatenate(
        (syncs.name.codes, len(syncs.name.names) + records[alone].astype(np.int32))
    )
    missing = np.full(alone.size, NULL)
    columns = {
        "thread": values_at(calls.thread, called),
        "stream": np.concatenate((syncs.stream, missing)),
        "awaited_stream": np.concatenate((syncs.awaited_stream, missing)),
        "event": np.concatenate((syncs.event, missing)),
        "record_correlation": np.concatenate((syncs.record_correlation, missing)),
        "recorded_ns": np.concatenate((values_at(calls.start_ns, recorded), missing)),
        "start_ns": np.concatenate((syncs.start_ns, calls.start_ns[alone])),
        "duration_ns": np.concatenate((syncs.duration_ns, calls.duration_ns[alone])),
        "correlation": np.concatenate((syncs.correlation, calls.correlation[alone])),
    }
    rows = _by_start(np.arange(called.size), columns["start_ns"])
    name = Coded(np.append(calls.name.codes, np.int32(-1)), calls.name.names)
    return {
        "rank": np.full(rows.size, rank),
        "kind": selected(Coded(kind, (*syncs.name.names, *_KINDS)), rows),
        "call": selected(name, called[rows]),
        "device": device_names(np.concatenate((syncs.device, missing))[rows], scan.device_type),
        "step": steps.containing(columns["start_ns"][rows]),
        **{column: its[rows] for column, its in columns.items()},
    }


def _called(names: Coded, pattern: re.Pattern[str]) -> Bool:
    return named(names, lambda name: pattern.match(name) is not None)


def _by_start(rows: Int64, start_ns: Int64) -> Int64:
    return rows[np.argsort(start_ns[rows], kind="stable")]
