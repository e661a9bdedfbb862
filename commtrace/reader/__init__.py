"""Trace files -> Trace: ``read`` is the whole face of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtrace import config, schema
from commtrace.errors import TraceError
from commtrace.reader.files import find
from commtrace.reader.runs import one_per_rank, run_notes
from commtrace.reader.workers import Part, read_each
from commtrace.schema import Note
from commtrace.trace import Trace
from commtrace.wording import counted

__all__ = ["read"]


def read(
    paths: Sequence[str | Path],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Trace:
    """Read the trace files that ``paths`` mean (see ``files.find``) as one recording.

    Files are read in parallel processes, by default one per core; ``progress`` is called
    with the files done and the files there are. A file that cannot be read, or whose rank
    another one has, is left out with a note. Raises TraceError, which names the file,
    where none can be read; UsageError where the user's configuration cannot be used.
    """
    config.kernel_patterns()  # what is wrong with them is said once, before any worker starts
    files = find(paths)
    outcomes: dict[Path, Part | str] = {}
    for file, outcome in read_each(files, workers):
        outcomes[file] = outcome
        if progress is not None:
            progress(len(outcomes), len(files))
    parts = [part for file in files if isinstance(part := outcomes[file], Part)]
    failures = [(file, why) for file in files if isinstance(why := outcomes[file], str)]
    if not parts:
        more = f" (and {counted(len(failures) - 1, 'more file')})" if len(failures) > 1 else ""
        raise TraceError(failures[0][1] + more)
    notes = [Note("unreadable", why, file=str(file)) for file, why in failures]
    parts, duplicates = one_per_rank(parts)
    notes += duplicates + run_notes(parts)
    manifest = _manifest([part.file for part in parts], notes)
    for part in parts:
        notes += part.notes
    frames = {
        table.name: table.frame(*(part.columns[table.name] for part in parts))
        for table in schema.TABLES
    }
    return Trace(**frames, notes=tuple(notes), manifest=manifest)


def _manifest(files: Sequence[Path], notes: list[Note]) -> Mapping[str, Any] | None:
    """The recording's own: above all its files, or beside the first that has one."""
    beside = dict.fromkeys(file.parent for file in files)
    above = Path(os.path.commonpath([folder.resolve() for folder in beside]))
    found = {
        (folder / "manifest.json").resolve(): folder / "manifest.json"
        for folder in (*beside, above)
        if (folder / "manifest.json").exists()
    }
    if not found:
        return None
    file = found.get(above / "manifest.json") or next(iter(found.values()))
    if len(found) > 1:
        others = f"the other {len(found) - 1} beside the traces are not used"
        notes.append(Note("several-manifests", f"{file} is taken for the run's: {others}"))
    try:
        manifest = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        notes.append(Note("unreadable", f"{file}: not a manifest: {error}", file=str(file)))
        return None
    return manifest if isinstance(manifest, dict) else None
