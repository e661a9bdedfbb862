"""torch.profiler, driven by hand; it gives way to one that the program runs itself."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd

from commtrace.record import profile
from commtrace.record.extras import Extras, new_profiler

__all__ = ["Profiler"]


class Profiler:
    """One profile after the other; the last is written.

    There is one profiler in a process: whoever begins takes it from who had it, and whoever
    stops gets all. ``was_taken``: the program's own has it, or took it.
    """

    def __init__(self) -> None:
        self._profiler: torch.profiler.profile | None = None
        self._running = False
        self.has_recorded = False
        self.was_taken = False
        self.began_ns = 0
        self.recorded_s = 0.0
        self.extras = Extras()

    def prepare(self) -> None:
        """Set up; what was recorded before is forgotten."""
        self.has_recorded = False
        self.was_taken = _theirs.active
        if not self.was_taken:
            self._profiler = new_profiler()
            with _theirs.not_now():
                self._profiler.prepare_trace()
            _theirs.loser = self

    def start(self) -> None:
        """Record from here on; on a device what is called from here on."""
        if self._profiler is None or self.was_taken:
            return
        _synchronize()
        self.began_ns = time.time_ns()
        with _theirs.not_now():
            self._profiler.start_trace()
        self._running = self.has_recorded = True
        self.extras.start()

    def stop(self) -> None:
        """Record no more, but all that was called."""
        if self._profiler is None or not self._running:
            return
        self._running = False
        self.extras.stop()
        self.recorded_s = (time.time_ns() - self.began_ns) / 1e9
        _synchronize()
        with _theirs.not_now():
            self._profiler.stop_trace()

    def events_per_s(self, since_ns: int) -> float | None:
        """How many events a second since then has left; None where nothing was recorded."""
        if self._profiler is None or self._running or not self.recorded_s:
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

    @property
    def theirs(self) -> Path | None:
        """What the program's own profiler wrote last, if it did."""
        return _theirs.wrote

    def lose(self) -> None:
        """The program has begun to profile: what is not yet stopped is lost."""
        if self._running or not self.has_recorded:
            self.extras.stop()
            self.was_taken = True
            self._running = self.has_recorded = False

    def export(self, path: Path, facts: Mapping[str, Any], *, partial: str | None) -> None:
        """Write what was recorded, if anything was; see :func:`profile.export`."""
        if self._profiler is not None and self.has_recorded:
            with _theirs.not_now():
                profile.export(self._profiler, path, facts, partial=partial)


class _Theirs:
    """Whether a profiler that is none of ours is at work: asked where all of them begin and end."""

    def __init__(self) -> None:
        self.active = False
        self.loser: Profiler | None = None
        self.wrote: Path | None = None
        self._ours = False

    @contextlib.contextmanager
    def not_now(self) -> Iterator[None]:
        """What begins or ends meanwhile is ours."""
        self.watch()
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    @functools.cache  # noqa: B019 - there is one
    def watch(self) -> None:
        """Hear of all that begin and end from now on."""
        for name, active in (("_prepare", True), ("_enable", True), ("_disable", False)):
            call = getattr(autograd, f"{name}_profiler")
            setattr(autograd, f"{name}_profiler", self._heard(call, active))
        profiler = torch.profiler.profile
        export = profiler.export_chrome_trace

        @functools.wraps(export)
        def exported(theirs: Any, path: str, *arguments: Any, **more: Any) -> Any:
            if not self._ours:
                self.wrote = Path(path)
            return export(theirs, path, *arguments, **more)

        profiler.export_chrome_trace = exported

    def _heard(self, call: Callable[..., Any], active: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def heard(*arguments: Any, **more: Any) -> Any:
            if not self._ours:
                self.active = active
                if active and self.loser:
                    self.loser.lose()
            return call(*arguments, **more)

        return heard


_theirs = _Theirs()


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
