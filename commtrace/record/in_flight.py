"""Messages that a program has called for, and has not yet waited for."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from commtrace.record import messages

__all__ = ["InFlight"]

_FROM_ANY = "recv_anysource"
_MESSAGES = ("send", "recv", _FROM_ANY)


class InFlight:
    """Those of gloo: torch notes each one's end in the profile that it was called in.

    Where that is gone the note is written into memory that others have. On CPUs only: of a GPU's
    messages no host notes the end.
    """

    def __init__(self) -> None:
        self._called: set[int] = set()
        self._from_any: dict[int, tuple[Any, int]] = {}
        self._before: dict[tuple[type, str], Any] = {}

    def watch(self) -> None:
        """From here on."""
        if self._before or not dist.is_available() or torch.cuda.is_available():
            return
        for name in _MESSAGES:
            self._replace(dist.ProcessGroup, name, self._calling)
        self._replace(dist.Work, "wait", self._waiting)

    def ignore(self) -> None:
        """No more."""
        for (its, name), before in self._before.items():
            setattr(its, name, before)
        self._before.clear()

    def now(self) -> frozenset[int]:
        """A number for each of them."""
        return frozenset(self._called)

    def _replace(self, its: type, name: str, ours: Callable[..., Callable[..., Any]]) -> None:
        if name in vars(its):  # what is there binds its object, which what a lookup gives need not
            self._before[its, name] = vars(its)[name]
            setattr(its, name, ours(getattr(its, name)))

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def calling(group: Any, *arguments: Any, **more: Any) -> Any:
            began_ns = time.time_ns()
            work = call(group, *arguments, **more)
            noted_ns = messages.note(call.__name__, group, began_ns, time.time_ns())
            if work is not None:
                self._called.add(id(work))
                if call.__name__ == _FROM_ANY and noted_ns is not None:
                    self._from_any[id(work)] = group, noted_ns
                weakref.finalize(work, self._forget, id(work))  # nobody waits: it ends so
            return work

        return calling

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def waiting(work: Any, *arguments: Any, **more: Any) -> Any:
            done = wait(work, *arguments, **more)
            if its := self._from_any.get(id(work)):
                group, noted_ns = its
                if group in dist.distributed_c10d._world.pg_group_ranks:  # has not ended
                    source = dist.get_global_rank(group, work._source_rank())
                    messages.came_from(source, noted_ns)
            self._forget(id(work))
            return done

        return waiting

    def _forget(self, number: int) -> None:
        self._called.discard(number)
        self._from_any.pop(number, None)
