"""The host of a rank: what it does, and what the profiler notes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

__all__ = ["LAUNCH_SPREAD", "Host", "HostEvent"]

SPREAD = 0.015  # of what kernels and the host take
LAUNCH_SPREAD = 0.1


class HostEvent(NamedTuple):
    """What the profiler notes on a host's thread, 0 the main one and 1 the backward's."""

    name: str
    category: str
    start: float
    us: float
    thread: int
    args: dict[str, Any]


class Host:
    """A host that is at ``time`` µs from the job's start.

    Noise has dice of its own for each kind of thing, so that what a fault adds of one kind
    leaves the others' noise as it is.
    """

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.events: list[HostEvent] = []
        self._seed = seed
        self._dice: dict[str, random.Random] = {}
        self._thread = 0
        self._correlation = 1000
        self._external = 0
        self.time = self.began = 30 * self._dice_of("start").random()

    @contextmanager
    def label(self, name: str) -> Iterator[None]:
        """A range that the program or PyTorch labels."""
        with self._annotation(name):
            self.time += 1
            yield
        self.time += 1

    @contextmanager
    def backward(self) -> Iterator[None]:
        """What autograd's thread does, while the main one waits for it."""
        self._thread = 1
        self.time += 3
        yield
        self._thread = 0
        self.time += 3

    def busy(self, us: float) -> None:
        """Do something that the profiler does not see."""
        self.time += us * self._noise("host")

    # ── for ranks ──────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _operator(self, name: str, **args: Any) -> Iterator[int]:
        self._external += 1
        start, external = self.time, self._external
        yield external
        self._note(name, "cpu_op", start, {"External id": external, **args})

    @contextmanager
    def _annotation(self, name: str) -> Iterator[None]:
        start = self.time
        yield
        self._note(name, "user_annotation", start, {})

    def _call(self, name: str, us: float) -> int:
        """Call CUDA's runtime; the call's correlation."""
        self._correlation += 1
        start, self.time = self.time, self.time + us
        self._note(name, "cuda_runtime", start, {"correlation": self._correlation})
        self.time += 0.3
        return self._correlation

    def _note(self, name: str, category: str, start: float, args: dict[str, Any]) -> None:
        took = self.time - start
        self.events.append(HostEvent(name, category, start, took, self._thread, args))

    def _noise(self, what: str, spread: float = SPREAD) -> float:
        return max(0.3, 1 + self._dice_of(what).gauss(0, spread))

    def _dice_of(self, what: str) -> random.Random:
        if what not in self._dice:
            self._dice[what] = random.Random(f"{self._seed}:{self.number}:{what}")
        return self._dice[what]
