"""What the ranks of a program agree on, through the store of its default group."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from commtrace.record.clock import Clock, Reading
from commtrace.trace_tables import WAITED

__all__ = ["Meeting"]

_numbers = itertools.count()
"""The same on all ranks, as all of them hold the same meetings."""

_POLL_S = 0.01
_LONG_S = 1.0


class Meeting:
    """Agreements and clocks.

    It never waits for long: where another rank does not come there are ``notes`` instead.
    """

    def __init__(self) -> None:
        self._keys = f"commtrace/{next(_numbers)}"
        self.readings: list[Reading] = []
        self.notes: list[str] = []
        self._clock: Clock | None = None
        self._store_answers = True

    def agree(self, what: str, proposal: int) -> int:
        """The first proposal of any rank."""
        return self._set(what, "", proposal)

    def lower(self, what: str, proposal: int) -> int:
        """The lowest proposal of any rank so far."""
        lowest = self._set(what, "", proposal)
        while lowest > proposal and self._store_answers:
            lowest = self._set(what, str(lowest), proposal)
        return lowest

    def _set(self, what: str, expected: str, proposal: int) -> int:
        """What the store has then, if it answers."""
        store = _store()
        if store is not None and self._store_answers:
            try:
                return int(store.compare_set(f"{self._keys}/{what}", expected, str(proposal)))
            except RuntimeError as error:  # of the store
                self._store_answers = False
                self._note(f"the ranks could not agree on the {what}: {error}")
        return proposal

    def announce(self) -> None:
        """Say that this rank is about to open."""
        if _store() is not None:
            self.agree(f"coming of rank {dist.get_rank()}", 1)

    def open(self, patience_s: float | None = None) -> None:
        """Connect this rank's clock to rank 0's. All ranks of the default group do.

        With patience no rank does if the first to open sees no others announced for so long: they
        may never come, as where one of them alone steps an optimizer.
        """
        store = _store()
        if store is None:
            return
        if patience_s is not None and not self._all(store, "coming", patience_s):
            self._note(
                "clocks were not compared: the ranks do not step equally often; call "
                "commtrace.step() once in each round"
            )
            return
        host = os.environ.get("MASTER_ADDR")
        if not host:
            self._note("clocks were not compared: MASTER_ADDR does not say where rank 0 is")
            return
        rank, world_size, key = dist.get_rank(), dist.get_world_size(), f"{self._keys}/clock"
        try:
            with self._timed():
                self._clock = Clock(rank, world_size, store, host, key)
        except RuntimeError as error:
            self._note(f"clocks were not compared: {error}")

    def _all(self, store: Any, what: str, patience_s: float) -> bool:
        """Whether all ranks are announced, as the first that asks finds it."""
        coming = [f"{self._keys}/{what} of rank {rank}" for rank in range(dist.get_world_size())]
        until = time.monotonic() + patience_s
        try:
            while not (come := store.check(coming)) and time.monotonic() < until:
                time.sleep(_POLL_S)
        except RuntimeError:  # of the store: what asks it next says so
            come = False
        return bool(self.agree(f"comparison of clocks, {what}", int(come)))

    def read(self, patience_s: float | None = None) -> None:
        """Read the clock, if it is connected; with patience as in ``open``."""
        if self._clock is None:
            return
        if patience_s is not None and (store := _store()) is not None:
            self.agree(f"end of rank {dist.get_rank()}", 1)
            with self._timed():
                ends = self._all(store, "end", patience_s)
            if not ends:
                self._note("clocks were compared once: the ranks do not end their steps together")
                return
        with self._timed():
            found = self._clock.read()
        self.readings += found
        if not found:
            self._note("this rank's clock was not compared: rank 0 did not answer")

    def close(self) -> None:
        """Disconnect."""
        if self._clock is not None:
            self._clock.close()
            self._clock = None

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        """A long wait for others is noted: who needs this rank waited as well."""
        begun = time.monotonic()
        yield
        if (waited_s := time.monotonic() - begun) >= _LONG_S:
            others = "others, which came late or not at all"
            self._note(f"{WAITED} for {waited_s:.1f} s, to compare its clock with {others}")

    def _note(self, text: str) -> None:
        self.notes.append(" ".join(text.split())[:300])


def _store() -> Any:
    started = dist.is_available() and dist.is_initialized()
    return dist.distributed_c10d._get_default_store() if started else None
