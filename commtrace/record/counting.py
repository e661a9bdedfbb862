"""Where a program's steps end: behind one optimizer's steps, or where it says so."""

from __future__ import annotations

import functools
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
        self._idle = 0
        self._told = False

    def told(self) -> None:
        """The program says that a step ends, so that no optimizer need be asked any more."""
        if self._told:
            self._window.step()
        else:
            self._told = True
            self._window.recount()

    def watch_optimizers(self) -> None:
        """Count what one optimizer does, of those that are made from now on.

        It is the first that steps; when that is gone, or done, the next one.

        Behind ``Optimizer.step`` and not in a hook, which runs within it: a step of the trace
        would begin in the middle of a range.
        """
        original = torch.optim.Optimizer.profile_hook_step
        counted = torch._disable_dynamo(lambda optimizer: self._counted(optimizer))

        def profile_hook_step(step: _Step) -> _Step:
            hooked = original(step)

            @functools.wraps(hooked)
            def counting(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                result = hooked(optimizer, *args, **kwargs)
                counted(optimizer)
                return result

            return counting

        torch.optim.Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _counted(self, optimizer: Any) -> None:
        if self._told:
            return
        known = self._optimizer()
        self._idle = 0 if known is optimizer else self._idle + 1
        if known is None or self._idle > _IDLE:
            self._optimizer, self._idle = weakref.ref(optimizer), 0
        if not self._idle:
            self._window.step()
