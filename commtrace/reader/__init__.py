"""Trace files -> Trace: ``read`` is the whole face of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace import config
from commtrace import trace_tables as schema
from commtrace.diagnosis import Note
from commtrace.errors import TraceError
from commtrace.heap import give_back, keep_little
from commtrace.machine import Machine
from commtrace.measures import Measures, learn
from commtrace.packed import Packed, pack
from commtrace.reader.build_tables import Identity
from commtrace.reader.check_run import (
    one_recording,
    run_notes,
    with_failure,
    without_copies,
    without_empty,
)
from commtrace.reader.common_time import in_common_time
from commtrace.reader.cycles import one_row_each, pauses, with_own_steps
from commtrace.reader.files import find
from commtrace.reader.lone_steps import without_lone_steps
from commtrace.reader.lost_base import with_lost_bases
from commtrace.reader.names import ranks_in_names
from commtrace.reader.recordings import ranks_by_order
from commtrace.reader.workers import Failure, Measured, read_each
from commtrace.table import Table
from commtrace.trace import PACKED, RankTrace
from commtrace.units import counted

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["read"]

_TOGETHER = 64  # files whose events are kept together
_Progress = Callable[[int, int], object]
_Outcome = tuple[Path, RankTrace | Failure]
_ReadAll = Callable[[Mapping[Path, Identity]], Iterator[_Outcome]]


def read(
    paths: Sequence[str | Path],
    *,
    workers: int | None = None,
    progress: _Progress | None = None,
    executor: Executor | None = None,
    cached: bool = False,
    measured: Measured | None = None,
    read_bytes: _Progress | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Measures:
    """Read the trace files that ``paths`` mean (see ``files.find``) as one recording.

    Those of URLs, as of S3, are copied first (see ``remote.local``).

    Files are read in parallel processes, by default one per core, or on the ``executor``;
    ``progress`` is called with the files done and the files there are, ``read_bytes`` with
    their bytes on disk, both before any is read and after each; ``meanwhile`` once while processes
    read. What is ``cached`` is not read again. What is ``measured`` of a rank by itself other
    processes find where they read it. A file that cannot be read, or that is of no trace
    or of another run, is left out with a note. Several files of a rank are put together if they
    are cycles of one recording. Raises TraceError, which names the file, where none can be read,
    or where they are of several recordings; UsageError where the user's configuration cannot be
    used.
    """
    config.kernel_patterns()  # what is wrong with them is said once, before any worker starts
    files = find(_local(paths))
    named = ranks_in_names(files)
    taken_for = {
        file: (named[file], "file-name") if file in named else (0, "assumed") for file in files
    }
    if len(files) == 1:
        keep_little()  # which also keeps its blocks, soon needed again: new ones cost page faults
    read_all = partial(
        read_each,
        workers=workers,
        executor=executor,
        cached=cached,
        measured=measured,
        meanwhile=meanwhile,
    )
    outcomes = dict(_told(read_all(taken_for), files, progress, read_bytes))
    parts = [part for file in files if isinstance(part := outcomes[file], RankTrace)]
    failures = {file: bad for file in files if isinstance(bad := outcomes[file], Failure)}
    if not parts:
        raise TraceError(_why_none(failures))
    notes = [_left_out(file, bad) for file, bad in failures.items()]
    parts, copies = without_copies(parts)
    parts, empty = without_empty(_numbered(parts, read_all))
    parts, strangers = one_recording(with_lost_bases(parts))
    notes += copies + empty + strangers + run_notes(parts)
    parts, lone = without_lone_steps(with_own_steps(parts))
    parts, apart = in_common_time(parts, stepless=bool(lone))
    notes += lone + apart
    for part in parts:
        notes += part.notes
    paused = pauses(parts)
    tables = {table.name: _table(table, parts) for table in schema.TABLES}
    tables = one_row_each(tables) if paused else tables
    if len(parts) > 1:
        # The columns of each rank came in thousands of small pieces.
        give_back()
        keep_little()
    manifest = _manifest([part.file for part in parts], notes)
    notes = with_failure(notes, manifest)
    # What is true of the run may have been noted for several files.
    run = Measures(
        **tables,
        notes=tuple(dict.fromkeys(notes)),
        manifest=manifest,
        machines=_machines(parts),
        pauses=paused,
    )
    for part in _lone(parts):
        learn(run, part.rank, part.measured)
    return run


def _told(
    outcomes: Iterable[_Outcome],
    files: Sequence[Path],
    progress: _Progress | None,
    read_bytes: _Progress | None,
) -> Iterator[_Outcome]:
    """What became of each file, told before the first and after each."""
    sizes = {file: file.stat().st_size for file in files} if read_bytes else {}
    all_bytes, done_bytes = sum(sizes.values()), 0

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, len(files))
        if read_bytes is not None:
            read_bytes(done_bytes, all_bytes)

    tell(0)
    for done, outcome in enumerate(outcomes, 1):
        yield outcome
        done_bytes += sizes.get(outcome[0], 0)
        tell(done)


def _why_none(failures: Mapping[Path, Failure]) -> str:
    """Why there is nothing to analyse: what the first of the files lacks."""
    first, *others = failures.values()
    return first.why + (f" (and {counted(len(others), 'more file')})" if others else "")


def _left_out(file: Path, bad: Failure) -> Note:
    if bad.is_no_trace:
        return Note("not-a-trace", f"{file} is no trace: left out", file=str(file))
    return Note("unreadable", bad.why, file=str(file))


def _machines(parts: Sequence[RankTrace]) -> dict[int, Machine]:
    """What ranks noted of their machines; of several files of one, the times belong to one each."""
    return {part.rank: part.machine for part in _lone(parts) if part.machine}


def _lone(parts: Sequence[RankTrace]) -> Iterator[RankTrace]:
    """Those that are all of their rank."""
    files = Counter(part.rank for part in parts)
    return (part for part in parts if files[part.rank] == 1)


def _table(table: Table, parts: Sequence[RankTrace]) -> Any:
    """A table of all parts, which need not hold theirs any longer."""
    its = [part.columns.pop(table.name) for part in parts]
    if table.name in PACKED:
        # Those of each of thousands of ranks would take more memory than what they hold.
        firsts = range(0, len(its), _TOGETHER)
        return Packed(table, [pack(*its[at : at + _TOGETHER]) for at in firsts])
    return Packed(table, [pack(*its)]) if table is schema.COLLECTIVES else table.rows(*its)


def _local(paths: Sequence[str | Path]) -> Sequence[str | Path]:
    if not any("://" in str(path) for path in paths):
        return paths
    from commtrace.reader.remote import local  # which few runs need

    return local(paths)


def _numbered(parts: list[RankTrace], read_all: _ReadAll) -> list[RankTrace]:
    """The parts; where no file has a rank, read anew with the ranks that their order gives."""
    if any(part.provenance != "assumed" for part in parts):
        return parts
    ranks = ranks_by_order(parts)
    anew = {file: (rank, "assumed") for file, rank in ranks.items() if rank}
    again = {file: part for file, part in read_all(anew) if isinstance(part, RankTrace)}
    return [again.get(part.file, part) for part in parts]


def _manifest(files: Sequence[Path], notes: list[Note]) -> Mapping[str, Any] | None:
    """The recording's own: above all its files, or beside them, as each node has one.

    Of nodes it is the first one's, or that of the first that failed, with what all say of their
    ranks.
    """
    beside = dict.fromkeys(file.parent for file in files)
    above = Path(os.path.commonpath([folder.resolve() for folder in beside]))
    if (above / "manifest.json").exists():
        return _manifest_in(above, notes)
    each = [its for folder in beside if (its := _manifest_in(folder, notes)) is not None]
    ranks = [its["ranks"] for its in each if isinstance(its.get("ranks"), list)]
    every = {"ranks": list(chain.from_iterable(ranks))} if ranks else {}
    first = next((its for its in each if its.get("status") == "failed"), each[0] if each else None)
    return first and {**first, **every}


def _manifest_in(folder: Path, notes: list[Note]) -> dict[str, Any] | None:
    file = folder / "manifest.json"
    if not file.exists():
        return None
    try:
        manifest = loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        notes.append(Note("unreadable", f"{file}: not a manifest: {error}", file=str(file)))
        return None
    return manifest if isinstance(manifest, dict) else None
