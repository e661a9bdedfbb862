"""One trace file, bytes -> Scan."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from commtrace.reader.json.accelerators import Accelerators
from commtrace.reader.json.events import Scan
from commtrace.reader.json.reading import Reading
from commtrace.reader.json.shares import scan_shared
from commtrace.reader.json.times import InexactError

__all__ = ["scan"]


def scan(
    path: Path, *, max_bytes: int | None = None, fast: bool = True, processes: int = 1
) -> Scan:
    """Read one trace file, gzip or plain, whatever its layout, also when damaged.

    Memory is bounded by what is kept. ``max_bytes`` is how large the file may become
    decompressed (by default see ``source.allowed_bytes``); without ``fast``, every event
    is parsed: the same result, slower; a large file is shared by so many ``processes``: the
    same, sooner. What was skipped is in the notes.

    Raises TraceError where the file cannot be read, is not a trace, or becomes too large.
    """
    found = scan_shared(path, max_bytes, fast, processes) if processes > 1 else None
    if found is not None:
        return found
    with suppress(InexactError):
        return _scanned(path, max_bytes, fast, exact=False)
    return _scanned(path, max_bytes, fast, exact=True)


def _scanned(path: Path, max_bytes: int | None, fast: bool, exact: bool) -> Scan:
    """The file with times as numbers or, where that is not ``exact``, as text."""
    accelerators = Accelerators()
    reading = Reading(path, max_bytes, fast, accelerators, exact)
    reading.run()
    if accelerators.late:
        accelerators = accelerators.again()
        reading = Reading(path, max_bytes, fast, accelerators, exact)
        reading.run()
    return reading.scan()
