"""What is recorded of one rank of a program, from before its first line to behind its last."""

from __future__ import annotations

import _thread
import functools
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from commtrace.record import profile, recording, without
from commtrace.record.clock import Reading
from commtrace.record.job import Program
from commtrace.record.labels import label_checkpoints
from commtrace.record.rank_agreement import Meeting
from commtrace.record.report import Report
from commtrace.record.step_detection import Steps
from commtrace.record.watch import watch
from commtrace.record.window import Window
from commtrace.record.worker import leave

__all__ = ["RankRecording", "replace_everywhere", "watch_group"]

_WHOLE_S = 20.0
"""How much of a program without steps is recorded, at most: its events are kept in memory."""
_OURS = signal.SIGRTMAX
"""Nobody sends it: it is raised within the process, to call something in its main thread."""


class RankRecording:
    """One rank's window, in this process, and what was learned when its file was written.

    Made once, before the program runs. ``report`` hears of it.
    """

    def __init__(self, program: Program, path: Path, report: Report) -> None:
        self.facts: dict[str, Any] = {}
        self.readings: list[Reading] = []
        self._program, self._report = program, report
        self._waiting: list[Callable[[], object]] = []
        facts = {"program": program.described()}
        self.window = Window(program.plan, path, facts, self._written)

    def prepare(self) -> None:
        """Have the window hear of steps, of signals, and of the end of the default group."""
        signal.signal(signal.SIGTERM, leave)
        signal.signal(_OURS, lambda *_: [self._waiting.pop(0)() for _ in list(self._waiting)])
        if self._program.plan.on_signal:
            signal.signal(signal.SIGUSR1, lambda *_: self._request())
        watch(self._report, self._program.timeout_s, request=self._request)
        if without.wanted("checkpoint"):
            label_checkpoints()
        steps = Steps(self.window)
        steps.watch_optimizers()
        recording.count_with(steps)
        watch_group(self.window)
        if not self._program.plan.on_signal:
            self._begin()
        os.register_at_fork(after_in_child=self._forked)

    def _written(self, meeting: Meeting, facts: dict[str, Any]) -> None:
        self.facts.update(facts)
        self.readings += meeting.readings
        self._report.recorded(meeting.readings, facts)

    def _in_main_thread(self, action: Callable[[], object]) -> None:
        self._waiting.append(action)
        _thread.interrupt_main(_OURS)

    def _begin(self) -> None:
        self.window.begin()
        seconds = self._program.plan.seconds or _WHOLE_S
        timer = threading.Timer(seconds, lambda: self._in_main_thread(self.window.pause))
        timer.daemon = True
        timer.start()

    def _request(self) -> None:
        self.window.request()
        if self.window.waits:
            self._in_main_thread(self._begin)

    def _forked(self) -> None:
        """Be an ordinary child of the program: a loader's worker, say."""
        self.window.abandon()
        recording.count_with(None)
        self._report.silence()
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def watch_group(window: Window) -> None:
    """Have a window hear of the default group's end, before which its ranks are remembered."""
    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        if group in (None, dist.group.WORLD):
            window.remember()
        profile.end_group(destroy, group)

    replace_everywhere(destroy, destroy_process_group)


def replace_everywhere(function: Callable[..., object], ours: Callable[..., object]) -> None:
    """Have all call another in place of a function, also those that imported it by name.

    A process that was spawned has run the program's file in a dictionary that is no module's.
    """
    for names in gc.get_referrers(function):
        if isinstance(names, dict) and names is not vars(ours):
            names.update({name: ours for name, its in names.items() if its is function})
