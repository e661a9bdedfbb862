"""Where a program's steps end: behind one optimizer's steps, or where it says so."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from commtrace.record.window import Window

__all__ = ["Steps"]

_IDLE = 20
"""So many steps of other optimizers without one of that which counts: it is done."""

_Step = Callable[..., Any]


class Steps:
    """Calls ``window.step`` whenever a step of the program ends."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._optimizer: Callable[[], object] = lambda: None  # a weak reference, once one stepped
        self._thread, self._idle = 0, 0
        self._marked = self._serves = False
        self._within = threading.local()

    def marked(self) -> None:
        """The program says that a step ends, so that no optimizer need be asked any more."""
        if self._marked:
            self._window.step()
        else:
            self._marked = True
            self._window.recount()

    def watch_optimizers(self) -> None:
        """Count what one optimizer does, of those that are made from now on.

        It is the first that steps; when that is gone, or done, the next one.

        Behind ``Optimizer.step`` and not in a hook, which runs within it: a step of the trace
        would begin in the middle of a range.
        """
        original = torch.optim.Optimizer.profile_hook_step
        entered = torch._disable_dynamo(lambda: self._entered())
        left = torch._disable_dynamo(lambda optimizer: self._left(optimizer))

        def profile_hook_step(step: _Step) -> _Step:
            hooked = original(step)

            @functools.wraps(hooked)
            def counting(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                entered()
                stepped = False
                try:
                    result = hooked(optimizer, *args, **kwargs)
                    stepped = True
                finally:
                    left(optimizer if stepped else None)
                return result

            return counting

        torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _entered(self) -> None:
        self._within.depth = getattr(self._within, "depth", 0) + 1

    def _left(self, optimizer: Any) -> None:
        # One may step another, or the class it derives from: the outermost is the program's.
        self._within.depth -= 1
        if optimizer is not None and not self._within.depth:
            self._counted(optimizer)

    def _counted(self, optimizer: Any) -> None:
        if self._marked or self._serves:
            return
        if torch._C._current_graph_task_id() != -1:  # no step ends within backward
            self._window.no_steps_as = "the optimizers step within backward"
            return
        known, thread = self._optimizer(), threading.get_native_id()
        if known is optimizer and thread != self._thread:  # a server's, for whoever calls
            self._serves = True
            self._window.end_steps("an optimizer steps in several threads, as a server's do")
            return
        self._idle = 0 if known is optimizer else self._idle + 1
        if known is None or self._idle > _IDLE:
            self._optimizer, self._idle = weakref.ref(optimizer), 0
            self._thread = thread
        if not self._idle:
            self._window.step()
