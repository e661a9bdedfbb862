"""A profiler that the program runs itself: when it is at work, and what it wrote."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd

from commtrace.record.machine import Machine

__all__ = ["OWN", "OwnProfiler", "Written"]


@dataclass(frozen=True)
class Written:
    """A trace that the program's own profiler wrote: where, and when it was recorded.

    ``machine`` is what that did meanwhile.
    """

    path: Path
    began_ns: int
    ended_ns: int
    machine: dict[str, Any] | None


class OwnProfiler:
    """Whether a profiler that is none of ours is at work: asked where all of them begin and end.

    ``begins`` is called before it does so. ``wrote`` is the last trace that it wrote.
    """

    def __init__(self) -> None:
        self.active = False
        self.begins: Callable[[], object] = lambda: None
        self.wrote: Written | None = None
        self._ours = False
        self._began_ns = self._ended_ns = 0
        self._machine = Machine()
        self._did: dict[str, Any] | None = None

    @contextlib.contextmanager
    def not_now(self) -> Iterator[None]:
        """What begins, ends or is written meanwhile is ours."""
        self.watch()
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def moved(self, path: Path) -> None:
        """What it wrote last is there now."""
        if self.wrote:
            self.wrote = replace(self.wrote, path=path.absolute())

    @functools.cache  # noqa: B019 - there is one
    def watch(self) -> None:
        """Hear of all that begin, end and are written from now on."""
        for name, heard in (
            ("_prepare", self._begin),
            ("_enable", self._record),
            ("_disable", self._end),
        ):
            call = getattr(autograd, f"{name}_profiler")
            setattr(autograd, f"{name}_profiler", self._heard(call, heard))
        profiler = torch.profiler.profile
        export, step = profiler.export_chrome_trace, profiler.step

        @functools.wraps(export)
        def exported(theirs: Any, path: str, *arguments: Any, **more: Any) -> Any:
            result = export(theirs, path, *arguments, **more)
            if not self._ours:
                at = self._began_ns, self._ended_ns
                self.wrote = Written(Path(path).absolute(), *at, self._did)
            return result

        @functools.wraps(step)
        def stepped(theirs: Any) -> None:
            if not self._ours:
                self._machine.step(theirs.step_num)
            step(theirs)

        profiler.export_chrome_trace, profiler.step = exported, stepped

    def _begin(self) -> None:
        self.active = True
        self._began_ns = time.time_ns()
        self.begins()

    def _record(self) -> None:
        self._begin()
        self._machine.start()

    def _end(self) -> None:
        self.active = False
        self._ended_ns = time.time_ns()
        self._did = self._machine.stop()

    def _heard(self, call: Callable[..., Any], heard: Callable[[], object]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(*arguments: Any, **more: Any) -> Any:
            if not self._ours:
                heard()
            return call(*arguments, **more)

        return called


OWN = OwnProfiler()
"""There is one profiler in a process at a time."""
