"""One rank of a program: ``python -m commtrace.record.runner PROGRAM``, in torchrun's environment.

The program runs as it would alone: as ``__main__``, with its own arguments and path.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

# The profiler imports it; a signal may start that while the program imports the same.
import torch._inductor.config  # noqa: F401

from commtrace.errors import RecordError
from commtrace.record import conceal, external
from commtrace.record.job import Program
from commtrace.record.rank_recording import RankRecording
from commtrace.record.report import Report, one_line
from commtrace.record.spawned import SpawnedRanks, refuse_to_spawn
from commtrace.record.worker import bound_to_launcher

__all__ = ["main"]


def main() -> None:
    """Run the program, record its window, report how it went, and end as it would have."""
    program = Program.from_json(sys.argv[1])
    report = bound_to_launcher() if program.launched else Report(None)
    recording = RankRecording(
        program, Path(program.folder, f"rank{os.environ['RANK']}.json.gz"), report
    )
    recording.prepare()
    spawned = _spawned(program, report)
    parent = os.getpid()
    error, status = _run(program)
    if os.getpid() != parent:
        _end_child(status)
    if report.hung:
        error, status = report.hung, status or 1
    if error:
        report.failed(error)
    had_spawned = spawned.hear_out()
    try:
        if had_spawned:
            recording.window.abandon()
            spawned.close()
        else:
            recording.window.close(error)
    except RecordError as short:
        error, status = error or str(short), status or 1
        report.fell_short(error)
        if not report.is_heard:  # a launcher of ours says it
            print(f"commtrace: {short}", file=sys.stderr)  # noqa: T201
    since = spawned.facts() if had_spawned else recording.window.learned_since()
    if not program.launched:
        recording.facts.update(since)
        external.finish(program, recording.facts, recording.readings, error)
    if not error:
        report.done(recording.readings, since)
    sys.exit(status)


def _spawned(program: Program, report: Report) -> SpawnedRanks:
    """The ranks that the program starts itself, where it was not started as one of several."""
    ranks = SpawnedRanks(program, report)
    if program.launched and os.environ["WORLD_SIZE"] == "1":
        ranks.watch()
    elif program.launched:
        refuse_to_spawn()
    return ranks


def _end_child(status: int | str | None) -> NoReturn:
    """End a forked child that has come to the program's end.

    At once: the profiler's library would wait for threads that only the parent has.
    """
    if isinstance(status, str):
        print(status, file=sys.stderr)  # noqa: T201 - as sys.exit does
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


# A program's last variables go with the process, and not while other threads still need them:
# torch waits for gloo's threads when a group goes, and those for the interpreter.
_kept: list[object] = []


def _run(program: Program) -> tuple[str | None, int | str | None]:
    """What went wrong, in a line, and the exit status that the program gives itself."""
    sys.argv = [program.name, *program.arguments]
    try:
        if program.is_module:
            sys.path[0] = str(Path.cwd())
            _kept.append(runpy.run_module(program.name, run_name="__main__", alter_sys=True))
        else:
            sys.path[0] = str(Path(program.name).resolve().parent)
            _kept.append(runpy.run_path(program.name, run_name="__main__"))
    except SystemExit as stop:
        _kept.append(stop)
        if not stop.code:
            return None, 0
        if stop.code == 128 + signal.SIGTERM:
            return "ended by SIGTERM", stop.code
        return conceal.message(f"ended with exit status {stop.code}", program.arguments), stop.code
    except BaseException as error:  # noqa: BLE001 - the program's, whatever it is
        _kept.append(error)
        traceback.print_exception(type(error), error, _theirs(error.__traceback__))
        why = one_line(error, program.arguments)
        return why, 130 if isinstance(error, KeyboardInterrupt) else 1
    return None, 0


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that is the program's."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    while trace and trace.tb_next and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
