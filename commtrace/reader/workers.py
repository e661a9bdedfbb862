"""Each trace file read in a process of its own, several at a time."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from commtrace.errors import TraceError
from commtrace.reader.kineto import identify, tables
from commtrace.reader.scan import scan
from commtrace.schema import Columns, Note

__all__ = ["Part", "read_each"]


@dataclass(frozen=True)
class Part:
    """What one file adds to a Trace: columns by table, notes with rank and file.

    ``told`` is false where neither the trace nor its name tells the rank.
    """

    file: Path
    rank: int
    told: bool
    columns: dict[str, Columns]
    notes: tuple[Note, ...]


def read_each(files: Sequence[Path], workers: int | None) -> Iterator[tuple[Path, Part | str]]:
    """Each file with its part, or with what is wrong with it, in the order they get done.

    By default as many ``workers`` as there are cores for this process. A worker that is
    killed costs its own file only. A single file is read in a process, too, where that lets
    this one load pandas meanwhile.
    """
    count = min(len(files), workers or _cores())
    alone = count == 1 and (workers == 1 or _cores() == 1 or "pandas" in sys.modules)
    if alone or not _can_fork():
        yield from ((file, _outcome(file)) for file in files)
    else:
        yield from _in_processes(list(files), count)


def _outcome(file: Path) -> Part | str:
    try:
        found = scan(file)
        rank, provenance = identify(found)
        made = tables(found, rank)
    except TraceError as error:
        return str(error)
    except MemoryError:
        return f"{file}: needs more memory than there is"
    noted = tuple(replace(note, rank=rank) for note in found.notes)
    return Part(file, rank, provenance != "assumed", made.columns, noted + made.notes)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _can_fork() -> bool:
    # Elsewhere a new process would run the program's own script again.
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _in_processes(files: list[Path], count: int) -> Iterator[tuple[Path, Part | str]]:
    waiting = files[::-1]
    running: dict[Connection, tuple[Path, BaseProcess]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < count:
                file = waiting.pop()
                pipe, process = _start(file)
                running[pipe] = file, process
            importlib.import_module("pandas")  # the parent will need it, the others do not
            done = wait(list(running))
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


def _start(file: Path) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(file, theirs), daemon=True)
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


def _work(file: Path, pipe: Connection) -> None:
    pipe.send(_outcome(file))


def _received(file: Path, pipe: Connection, process: BaseProcess) -> Part | str:
    try:
        outcome: Part | str = pipe.recv()
    except (EOFError, OSError):
        process.join()
        killed = (process.exitcode or 0) < 0
        how = "was killed, perhaps for want of memory" if killed else "failed"
        return f"{file}: the process that read it {how}: try again with --workers 1"
    finally:
        pipe.close()
    process.join()
    return outcome
