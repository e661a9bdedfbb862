"""Processes that each do one item after another."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from commtrace.engine.attempt import Lost, attempt

__all__ = ["can_fork", "in_pool"]


def can_fork() -> bool:
    """Whether this process can have others beside it."""
    # Elsewhere a new process would run the program's own script again.
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def in_pool(
    function: Callable[[Any], Any],
    items: Sequence[Any],
    count: int,
    meanwhile: Callable[[], object] = lambda: None,
    refused: Callable[[OSError], object] = lambda _: None,
) -> Iterator[tuple[Any, Any]]:
    """As ``engine.each`` does it in ``count`` processes, or in this one where none can be forked.

    They are forked before anything else, so that they hold nothing that is loaded later, and live
    until all is done. They print nothing, and do not outlive the loop over the results.
    """
    if not can_fork():
        yield from ((item, attempt(function, item)) for item in items)
        return
    pool = _Pool(function, refused)
    try:
        waiting = deque(items)
        pool.begin(waiting, count)
        meanwhile()
        yield from pool.results(waiting, count)
        # What processes died of is left for the end: alone it has all the memory.
        yield from pool.results(pool.again, 1)
    finally:
        pool.end()


class _Pool:
    def __init__(
        self, function: Callable[[Any], Any], refused: Callable[[OSError], object]
    ) -> None:
        self.again = deque[Any]()
        self._function, self._refused = function, refused
        self._most = sys.maxsize
        self._idle: list[_Worker] = []
        self._busy: dict[Any, tuple[Any, _Worker]] = {}

    def begin(self, waiting: deque[Any], count: int) -> None:
        while waiting and len(self._busy) < min(count, self._most):
            try:
                self._begin(waiting[0])
            except OSError as error:
                self._refused(error)
                self._most = len(self._busy)
            else:
                waiting.popleft()

    def results(self, waiting: deque[Any], count: int) -> Iterator[tuple[Any, Any]]:
        last = waiting is self.again
        while waiting or self._busy:
            self.begin(waiting, count)
            if not self._busy:
                item = waiting.popleft()
                # What a process died of is not tried on this one.
                yield item, Lost(killed=True) if last else attempt(self._function, item)
                continue
            for pipe in wait(list(self._busy)):
                item, worker = self._busy.pop(pipe)
                result = worker.received()
                died = isinstance(result, Lost) and result.fault is None
                if not died:
                    self._idle.append(worker)
                if died and not last:
                    self.again.append(item)
                else:
                    yield item, result

    def end(self) -> None:
        for worker in (*self._idle, *(worker for _, worker in self._busy.values())):
            worker.end()

    def _begin(self, item: Any) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._function)
        try:
            worker.pipe.send(item)
        except OSError:  # it died while it had nothing to do
            worker.end()
            worker = _Worker(self._function)
            worker.pipe.send(item)
        self._busy[worker.pipe] = item, worker


class _Worker:
    """A process at the other end of a pipe."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_work, args=(function, theirs, self.pipe), daemon=True
        )
        with theirs, warnings.catch_warnings():
            # Python 3.12 warns of threads. The workers share no lock with any.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Ctrl-C is the parent's, which ends the workers: from the first moment they have none.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def received(self) -> Any:
        """The result of its item; where the process died, how."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            self.end()
            return Lost(killed=(self._process.exitcode or 0) < 0)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.exitcode is None:
            self._process.kill()
        self._process.join()
        self.pipe.close()


def _work(function: Callable[[Any], Any], pipe: Connection, parents: Connection) -> None:
    parents.close()
    gc.freeze()  # what is the parent's is never looked at, and so stays shared
    # What goes wrong here is said in one line by the parent.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - a notebook has its own
    while True:
        pipe.send(attempt(function, pipe.recv()))
