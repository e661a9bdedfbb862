"""torch.profiler, driven by hand; it gives way to one that the program runs itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from commtrace.record import profile
from commtrace.record.extras import Extras, new_profiler
from commtrace.record.own_profiler import OWN

__all__ = ["Profiler"]

_ALL = (ProfilerActivity.CPU, ProfilerActivity.CUDA, ProfilerActivity.XPU)
"""All that can be toggled: of fewer torch warns."""


class Profiler:
    """One profile after the other; the last is written.

    There is one profiler in a process: whoever begins takes it from who had it, and whoever
    stops gets all. ``was_taken``: the program's own has it, or took it. It begins and ends in one
    thread: stopped in another, torch loses what was recorded, and ends the process if that is
    written.
    """

    def __init__(self) -> None:
        self._profiler: torch.profiler.profile | None = None
        self._running = self._paused = False
        self._thread = 0
        self.has_recorded = False
        self.was_taken = False
        self.began_ns = 0
        self.recorded_s = 0.0
        self.extras = Extras()

    @property
    def runs(self) -> bool:
        """Whether it records, or did until it was paused."""
        return self._running

    @property
    def is_of_this_thread(self) -> bool:
        """Whether what it records can be kept, if it is stopped now."""
        return not self._running or self._thread == threading.get_native_id()

    def prepare(self) -> None:
        """Set up; what was recorded before is forgotten."""
        self.has_recorded = False
        self.was_taken = OWN.active
        if not self.was_taken:
            self._profiler = new_profiler()
            with OWN.not_now():
                self._profiler.prepare_trace()
            OWN.begins = self.lose

    def start(self) -> None:
        """Record from here on; on a device what is called from here on."""
        if self._profiler is None or self.was_taken:
            return
        _synchronize()
        self.began_ns = time.time_ns()
        with OWN.not_now():
            self._profiler.start_trace()
        self._thread = threading.get_native_id()
        self._running = self.has_recorded = True
        self._paused = False
        self.extras.start()

    def pause(self) -> None:
        """Record no more of what is called; until ``stop`` the profile is there.

        torch notes when an operation of gloo ends in the profile that it was called in, though that
        be gone: what is in flight would write into memory that others have.
        """
        if self._profiler is None or not self._running or self._paused:
            return
        toggle = getattr(self._profiler, "toggle_collection_dynamic", None)
        if toggle is None:  # torch before 2.5
            self.stop()
            return
        self._end()
        toggle(False, _ALL)
        self._paused = True

    def stop(self) -> None:
        """Record no more, but all that was called."""
        if self._profiler is None or not self._running:
            return
        self.has_recorded = self.is_of_this_thread
        self._running = False
        if not self._paused:
            self._end()
        with OWN.not_now():
            self._profiler.stop_trace()

    def _end(self) -> None:
        """Nothing that is called from here on counts; a device still runs what was called."""
        self.extras.stop()
        self.recorded_s = (time.time_ns() - self.began_ns) / 1e9
        _synchronize()

    def events_per_s(self, since_ns: int) -> float | None:
        """How many events a second since then has left; None where nothing was recorded."""
        if self._profiler is None or self._running or not self.has_recorded:
            return None
        seconds = self.recorded_s - (since_ns - self.began_ns) / 1e9
        if not 0 < seconds < self.recorded_s:  # it ended before: all of it has to do
            since_ns, seconds = 0, self.recorded_s
        events = self._profiler.profiler.kineto_results.events()
        return sum(1 for event in events if event.start_ns() >= since_ns) / seconds

    def drop(self) -> None:
        """This is a forked child's copy of a profile: it would grow for as long as that lives."""
        self.extras.stop()
        if self._running and torch.autograd._profiler_enabled():
            torch.autograd._disable_profiler()
        self._running = self.has_recorded = False

    def lose(self) -> None:
        """The program has begun to profile: what is not yet stopped, or paused, is lost."""
        if self._paused:
            self.stop()
        if self._running or not self.has_recorded:
            self.extras.stop()
            self.was_taken = True
            self._running = self.has_recorded = False

    def export(self, path: Path, facts: Mapping[str, Any], *, partial: str | None) -> None:
        """Write what was recorded, if anything was; see :func:`profile.export`."""
        if self._profiler is not None and self.has_recorded:
            with OWN.not_now():
                profile.export(self._profiler, path, facts, partial=partial)


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
