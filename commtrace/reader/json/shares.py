"""One large file read by several processes: each decompresses all and decodes its share.

They cut the text alike, and their shares are joined in the file's order. A file with any fault,
or whose events hang on those before them, is left to one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from commtrace.engine import can_fork, each
from commtrace.errors import TraceError
from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.columns_from_events import Collector
from commtrace.reader.json.document import NotSharedError, Share
from commtrace.reader.json.events import Scan
from commtrace.reader.json.reading import Reading
from commtrace.reader.json.source import Source
from commtrace.reader.json.times import InexactError

__all__ = ["scan_shared", "shares"]

SHARE_BYTES = 20_000_000  # of JSON: less is read almost before another process has begun


class _Job(Struct, frozen=True):
    path: Path
    max_bytes: int | None
    fast: bool
    processes: int


class _Part(Struct, frozen=True):
    collectors: Mapping[int, Collector]
    accelerators: Accelerators
    events: int


def shares(path: Path, processes: int) -> int:
    """Among how many of these processes it pays to share the file; 1 where it does not."""
    try:
        return max(1, min(processes, Source(path).likely_bytes // SHARE_BYTES))
    except TraceError:
        return 1  # whoever reads it will say so


def scan_shared(path: Path, max_bytes: int | None, fast: bool, processes: int) -> Scan | None:
    """The file as ``scan`` reads it; None where it is small, or cannot be shared."""
    processes = shares(path, processes)
    if processes == 1 or not can_fork():
        return None
    reading = _joined(_Job(path, max_bytes, fast, processes))
    return None if reading is None else reading.scan()


def _joined(job: _Job) -> Reading | None:
    """All shares together, of which this process reads the first."""
    own: list[Reading] = []
    others = range(1, job.processes)
    parts = each(partial(_part, job), others, len(others), lambda: own.append(_read(job, 0)))
    with suppress(NotSharedError, TraceError):
        for _, part in parts:
            if not isinstance(part, _Part):
                return None
            own[0].join(part.collectors, part.events)
            own[0].accelerators.join(part.accelerators)
        return own[0]
    return None


def _part(job: _Job, number: int) -> _Part | None:
    with suppress(NotSharedError, TraceError):
        reading = _read(job, number)
        return _Part(reading.collectors, reading.accelerators, reading.events)
    return None


def _read(job: _Job, number: int) -> Reading:
    with suppress(InexactError):
        return _read_with_times(job, number, exact=False)
    return _read_with_times(job, number, exact=True)


def _read_with_times(job: _Job, number: int, exact: bool) -> Reading:
    share = Share(number, job.processes)
    reading = Reading(job.path, job.max_bytes, job.fast, Accelerators(), exact, share)
    reading.run()
    if reading.has_faults or reading.accelerators.in_turn:
        raise NotSharedError
    return reading
