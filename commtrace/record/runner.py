"""One rank of a program: ``python -m commtrace.record.runner PROGRAM``, in torchrun's environment.

The program runs as it would alone: as ``__main__``, with its own arguments and path.
"""

from __future__ import annotations

import _thread
import atexit
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

# The profiler imports it; a signal may start that while the program imports the same.
import torch._inductor.config  # noqa: F401
import torch.distributed as dist

from commtrace.errors import RecordError
from commtrace.record import conceal, external, profile, recording, without
from commtrace.record.job import Program
from commtrace.record.labels import label_checkpoints
from commtrace.record.rank_agreement import Meeting
from commtrace.record.report import Report, one_line
from commtrace.record.step_detection import Steps
from commtrace.record.watch import watch
from commtrace.record.window import Window
from commtrace.record.worker import bound_to_launcher, leave

__all__ = ["main"]

_WHOLE_S = 20.0
"""How much of a program without steps is recorded, at most: its events are kept in memory."""
_OURS = signal.SIGRTMAX
"""Nobody sends it: it is raised within the process, to call something in its main thread."""


def main() -> None:
    """Run the program, record its window, report how it went, and end as it would have."""
    program = Program.from_json(sys.argv[1])
    report = bound_to_launcher() if program.launched else Report(None)
    known: dict[str, Any] = {}
    meetings: list[Meeting] = []

    def written(meeting: Meeting, facts: dict[str, Any]) -> None:
        known.update(facts)
        meetings.append(meeting)
        report.recorded(meeting.readings, facts)

    path = Path(program.folder, f"rank{os.environ['RANK']}.json.gz")
    window = Window(program.plan, path, {"program": program.described()}, written)
    _prepare(program, window, report)
    parent = os.getpid()
    error, status = _run(program)
    if os.getpid() != parent:
        _end_child(status)
    if report.hung:
        error, status = report.hung, status or 1
    if error:
        report.failed(error)
    try:
        window.close(error)
    except RecordError as short:
        error, status = error or str(short), status or 1
        report.fell_short(error)
        if not report.is_heard:  # a launcher of ours says it
            print(f"commtrace: {short}", file=sys.stderr)  # noqa: T201
    readings = [reading for meeting in meetings for reading in meeting.readings]
    if not program.launched:
        external.finish(program, known, readings, error)
    if not error:
        report.done(readings)
    sys.exit(status)


def _prepare(program: Program, window: Window, report: Report) -> None:
    """Have the window hear of steps, of signals, and of the end of the default group."""
    waiting: list[Callable[[], object]] = []

    def in_main_thread(action: Callable[[], object]) -> None:
        waiting.append(action)
        _thread.interrupt_main(_OURS)

    def begin() -> None:
        window.begin()
        seconds = program.plan.seconds or _WHOLE_S
        timer = threading.Timer(seconds, lambda: in_main_thread(window.pause))
        timer.daemon = True
        timer.start()

    def request() -> None:
        window.request()
        if window.waits:
            in_main_thread(begin)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(_OURS, lambda *_: [waiting.pop(0)() for _ in list(waiting)])
    if program.plan.on_signal:
        signal.signal(signal.SIGUSR1, lambda *_: request())
    watch(report, program.timeout_s, request=request)
    if without.wanted("checkpoint"):
        label_checkpoints()
    steps = Steps(window)
    steps.watch_optimizers()
    recording.count_with(steps)
    _watch_group(window)
    if not program.plan.on_signal:
        begin()
    os.register_at_fork(after_in_child=lambda: _forked(window, report))


def _forked(window: Window, report: Report) -> None:
    """Be an ordinary child of the program: a loader's worker, say."""
    window.abandon()
    recording.count_with(None)
    report.silence()
    if signal.getsignal(signal.SIGTERM) is leave:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _watch_group(window: Window) -> None:
    destroy = dist.destroy_process_group

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if group in (None, dist.group.WORLD):
            window.remember()
        profile.keep_groups()
        destroy(group)

    dist.destroy_process_group = destroy_process_group
    dist.distributed_c10d.destroy_process_group = destroy_process_group


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
