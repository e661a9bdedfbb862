"""Each trace file read by itself, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from commtrace.diagnosis import Note
from commtrace.engine import HERE, Lost, cores, each, for_files
from commtrace.errors import TraceError
from commtrace.measures import Sealed
from commtrace.packed import pack
from commtrace.reader import cache
from commtrace.reader.build_tables import Identity, identify, tables
from commtrace.reader.json.document import NotATraceError
from commtrace.reader.json.scan import scan
from commtrace.reader.json.shares import shares
from commtrace.table import Columns
from commtrace.trace import PACKED, RankTrace

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["Failure", "Measured", "read_each"]

Measured = Callable[[RankTrace], dict[str, Columns]]
"""What is found of a rank by itself where it is read, for ``RankTrace.measured``."""

_FEWER = "try again with --workers 1"
_FAULT = "a fault of commtrace's: please report it"


class Failure(Struct, frozen=True):
    """Why a file adds nothing; one of another kind ``is_no_trace``, and nothing is wrong."""

    why: str
    is_no_trace: bool = False


def read_each(
    files: Mapping[Path, Identity],
    workers: int | None,
    executor: Executor | None = None,
    *,
    cached: bool = False,
    measured: Measured | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Path, RankTrace | Failure]]:
    """Each file with its part, or with what is wrong with it, in the order they get done.

    The files come with the rank that they are taken to be of where they name none. They are
    read on the ``executor``, if there is one, else in so many processes; by default in as many as
    there are ``cores``, small files in this one; ``meanwhile`` is called once while others read.
    What is ``cached`` is not read again. What other processes read is ``measured`` there.
    """
    known = {}
    if cached and executor is None:  # whose machines have caches of their own
        found = {file: cache.get(file, otherwise) for file, otherwise in files.items()}
        known = {file: part for file, part in found.items() if part is not None}
        yield from known.items()
    unknown = {file: otherwise for file, otherwise in files.items() if file not in known}
    where = executor or workers or (HERE if len(unknown) == 1 else for_files(unknown.keys()))
    processes = 1
    if executor is None and len(unknown) == 1:
        processes = shares(next(iter(unknown)), workers or cores())
    if processes > 1:
        where = HERE  # it is shared by processes of its own, which none of these can have
    there = None if where == HERE else measured
    items = [(file, otherwise, cached, processes, there) for file, otherwise in unknown.items()]
    refusals: list[OSError] = []
    for (file, *_), outcome in each(_read, items, where, meanwhile, refusals.append):
        if isinstance(outcome, RankTrace):
            yield file, _noted(outcome, refusals)
        else:
            yield file, _failure(file, outcome) if isinstance(outcome, Lost) else outcome
    if cached and unknown:
        cache.trim()


def _read(item: tuple[Path, Identity, bool, int, Measured | None]) -> RankTrace | Failure:
    file, otherwise, cached, processes, measured = item
    if cached and (found := cache.get(file, otherwise)):
        return found
    outcome = _outcome(file, otherwise, processes)
    if isinstance(outcome, Failure):
        return outcome
    if measured is not None:
        outcome = structs.replace(outcome, measured=measured(outcome))
    if cached:
        cache.put(outcome, otherwise)
    if measured is not None:
        sealed = {name: Sealed.of(columns) for name, columns in outcome.measured.items()}
        outcome = structs.replace(outcome, measured=sealed)
    return outcome


def _outcome(file: Path, otherwise: Identity, processes: int = 1) -> RankTrace | Failure:
    try:
        found = scan(file, processes=processes)
        identity = identify(found, otherwise)
        made = tables(found, identity)
    except TraceError as error:
        return Failure(str(error), isinstance(error, NotATraceError))
    except MemoryError:
        return Failure(f"{file}: needs more memory than there is: {_FEWER}")
    noted = tuple(replace(note, rank=identity[0]) for note in found.notes)
    columns = {table: pack(its) if table in PACKED else its for table, its in made.columns.items()}
    return RankTrace(file, *identity, columns, noted + made.notes, made.machine)


def _noted(part: RankTrace, refusals: list[OSError]) -> RankTrace:
    """The part, with why there were not as many processes as there should have been."""
    if not refusals:
        return part
    why = f"could not be started ({refusals[0].strerror}): they are read in turn"
    note = Note("no-process", f"a process to read files {why}")
    return structs.replace(part, notes=(*part.notes, note))


def _failure(file: Path, lost: Lost) -> Failure:
    if lost.fault is not None:
        return Failure(f"{file}: cannot be read: {lost.fault}, {_FAULT}")
    how = (
        f"was killed, perhaps for want of memory: {_FEWER}" if lost.killed else f"failed, {_FAULT}"
    )
    return Failure(f"{file}: the process that read it {how}")
