"""What the ranks of a program agree on, through the store of its default group."""

from __future__ import annotations

import itertools
import os
from typing import Any

import torch.distributed as dist

from commtrace.record.clock import Clock, Reading

__all__ = ["Meeting"]

_numbers = itertools.count()
"""The same on all ranks, as all of them hold the same meetings."""


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

    def open(self) -> None:
        """Connect this rank's clock to rank 0's. All ranks of the default group do."""
        store = _store()
        if store is None:
            return
        host = os.environ.get("MASTER_ADDR")
        if not host:
            self._note("clocks were not compared: MASTER_ADDR does not say where rank 0 is")
            return
        rank, world_size, key = dist.get_rank(), dist.get_world_size(), f"{self._keys}/clock"
        try:
            self._clock = Clock(rank, world_size, store, host, key)
        except RuntimeError as error:
            self._note(f"clocks were not compared: {error}")

    def read(self) -> None:
        """Read the clock, if it is connected."""
        if self._clock is None:
            return
        found = self._clock.read()
        self.readings += found
        if not found:
            self._note("this rank's clock was not compared: rank 0 did not answer")

    def close(self) -> None:
        """Disconnect."""
        if self._clock is not None:
            self._clock.close()
            self._clock = None

    def _note(self, text: str) -> None:
        self.notes.append(" ".join(text.split())[:300])


def _store() -> Any:
    started = dist.is_available() and dist.is_initialized()
    return dist.distributed_c10d._get_default_store() if started else None
