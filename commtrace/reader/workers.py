"""Each trace file read in a process of its own, several at a time."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from commtrace.diagnosis import Note
from commtrace.errors import TraceError
from commtrace.reader.build_tables import Identity, identify, tables
from commtrace.reader.json.document import NotATraceError
from commtrace.reader.json.scan import scan
from commtrace.trace import RankTrace

__all__ = ["Failure", "cores", "read_each"]

_FEWER = "try again with --workers 1"
_FAULT = "a fault of commtrace's: please report it"


@dataclass(frozen=True)
class Failure:
    """Why a file adds nothing; one of another kind ``is_no_trace``, and nothing is wrong."""

    why: str
    is_no_trace: bool = False


def read_each(
    files: Mapping[Path, Identity], workers: int | None
) -> Iterator[tuple[Path, RankTrace | Failure]]:
    """Each file with its part, or with what is wrong with it, in the order they get done.

    The files come with the rank that they are taken to be of where they name none. By default
    as many ``workers`` as there are ``cores``. A worker that dies costs its own file only, and
    prints nothing. By default a single file is read by this process if it has pandas, which it
    would else load meanwhile; there a fault of ours raises what it is. Where no process
    can be started, this one reads the file.
    """
    if workers is None and len(files) == 1 and "pandas" in sys.modules:
        yield from ((file, _outcome(file, files[file])) for file in files)
    elif not _may_fork():
        yield from ((file, _outcome_or_fault(file, files[file])) for file in files)
    else:
        yield from _in_processes(files, min(len(files), workers or cores()))


def cores() -> int:
    """How many there are for this process."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _outcome(file: Path, otherwise: Identity) -> RankTrace | Failure:
    try:
        found = scan(file)
        identity = identify(found, otherwise)
        made = tables(found, identity)
    except TraceError as error:
        return Failure(str(error), isinstance(error, NotATraceError))
    except MemoryError:
        return Failure(f"{file}: needs more memory than there is: {_FEWER}")
    noted = tuple(replace(note, rank=identity[0]) for note in found.notes)
    return RankTrace(file, *identity, made.columns, noted + made.notes)


def _outcome_or_fault(file: Path, otherwise: Identity) -> RankTrace | Failure:
    found: list[RankTrace | Failure] = []
    with _FaultReported(file, found.append):
        found.append(_outcome(file, otherwise))
    return found[0]


def _may_fork() -> bool:
    # Elsewhere a new process would run the program's own script again.
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _in_processes(
    files: Mapping[Path, Identity], count: int
) -> Iterator[tuple[Path, RankTrace | Failure]]:
    waiting = list(files)[::-1]
    running: dict[Connection, tuple[Path, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                file = waiting.pop()
                try:
                    pipe, process = _start(file, files[file])
                except OSError as error:
                    yield file, _in_this_process(file, files[file], error)
                else:
                    running[pipe] = file, process
            importlib.import_module("pandas")  # the parent will need it, the others do not
            done = wait(list(running)) if running else ()
            for pipe in [pipe for pipe in running if pipe in done]:
                file, process = running[pipe]
                outcome = _received(file, pipe, process)
                del running[pipe]
                yield file, outcome
    finally:
        for pipe, (_, process) in running.items():
            process.kill()
            process.join()
            pipe.close()


def _in_this_process(file: Path, otherwise: Identity, error: OSError) -> RankTrace | Failure:
    outcome = _outcome_or_fault(file, otherwise)
    if isinstance(outcome, Failure):
        return outcome
    why = f"a process to read files could not be started ({error.strerror}): they are read in turn"
    return replace(outcome, notes=(*outcome.notes, Note("no-process", why)))


def _start(file: Path, otherwise: Identity) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(file, otherwise, theirs), daemon=True)
    with theirs, warnings.catch_warnings():
        # Python 3.12 warns of threads. The workers share no lock with any.
        warnings.simplefilter("ignore", DeprecationWarning)
        # Ctrl-C is the parent's, which ends the workers: from their first moment they have none.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ours, process


def _work(file: Path, otherwise: Identity, pipe: Connection) -> None:
    # What goes wrong here is said in one line by the parent.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - a notebook has its own
    with _FaultReported(file, pipe.send):
        pipe.send(_outcome(file, otherwise))


class _FaultReported:
    """A fault of ours is no more than why its file cannot be read, and where it lies."""

    def __init__(self, file: Path, report: Callable[[Failure], object]) -> None:
        self._file, self._report = file, report

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        place = traceback.extract_tb(trace)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        self._report(Failure(f"{self._file}: cannot be read: {kind.__name__} in {where}, {_FAULT}"))
        return True


def _received(file: Path, pipe: Connection, process: BaseProcess) -> RankTrace | Failure:
    try:
        outcome: RankTrace | Failure = pipe.recv()
    except (EOFError, OSError):
        process.join()
        killed = (process.exitcode or 0) < 0
        how = f"was killed, perhaps for want of memory: {_FEWER}" if killed else f"failed, {_FAULT}"
        return Failure(f"{file}: the process that read it {how}")
    finally:
        pipe.close()
    process.join()
    return outcome
