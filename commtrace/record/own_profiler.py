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

__all__ = ["OWN", "OwnProfiler", "Written"]


@dataclass(frozen=True)
class Written:
    """A trace that the program's own profiler wrote: where, and when it was recorded."""

    path: Path
    began_ns: int
    ended_ns: int


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
        for name, begins in (("_prepare", True), ("_enable", True), ("_disable", False)):
            call = getattr(autograd, f"{name}_profiler")
            setattr(autograd, f"{name}_profiler", self._heard(call, begins))
        profiler = torch.profiler.profile
        export = profiler.export_chrome_trace

        @functools.wraps(export)
        def exported(theirs: Any, path: str, *arguments: Any, **more: Any) -> Any:
            result = export(theirs, path, *arguments, **more)
            if not self._ours:
                self.wrote = Written(Path(path).absolute(), self._began_ns, self._ended_ns)
            return result

        profiler.export_chrome_trace = exported

    def _heard(self, call: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def heard(*arguments: Any, **more: Any) -> Any:
            if not self._ours:
                self.active = begins
                if begins:
                    self._began_ns = time.time_ns()
                    self.begins()
                else:
                    self._ended_ns = time.time_ns()
            return call(*arguments, **more)

        return heard


OWN = OwnProfiler()
"""There is one profiler in a process at a time."""
