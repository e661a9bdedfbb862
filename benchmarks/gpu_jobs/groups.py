"""Process groups: who communicates, over which links, and what that takes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.gpu_jobs.device import Collective, Message

__all__ = ["Group"]

MESSAGE_US = 8.0  # latency of a message between two ranks
SPREAD = 0.015  # of what the wire takes


def _always(_: int) -> float:
    return 1.0


@dataclass(eq=False)
class Group:
    """A process group, with a stream of its own on each of its ranks.

    Collectives move at ``gb_s`` (bus bandwidth) after ``latency_us``, and take ``slower``
    times as long, by their number. Messages move at what ``links`` has for a pair, in this
    direction, otherwise at ``message_gb_s``.
    """

    name: str
    ranks: tuple[int, ...]
    description: str
    stream: int
    gb_s: float = 300.0
    latency_us: float = 12.0
    message_gb_s: float = 150.0
    links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    slower: Callable[[int], float] = _always
    seed: int = 0
    _called: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _collectives: dict[int, Collective] = field(default_factory=dict)
    _messages: dict[tuple[int, int, int], Message] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of its ranks."""
        return len(self.ranks)

    @property
    def stride(self) -> int:
        """From one of its ranks to the next."""
        return self.ranks[1] - self.ranks[0]

    def collective(self, rank: int, moved: float) -> tuple[Collective, float]:
        """The next collective that a rank calls, and the time for its ``moved`` bytes."""
        number = self._next(rank)
        collective = self._collectives.setdefault(number, Collective(self.size))
        wire_us = self.latency_us + moved / self.gb_s / 1e3
        return collective, wire_us * self.slower(number) * self._noise(number)

    def message(self, caller: int, source: int, to: int, size: int) -> Message:
        """The next message from a rank to another, as one of both calls it."""
        key = (source, to, self._next(caller, source, to))
        if key not in self._messages:
            gb_s = self.links.get((source, to), self.message_gb_s)
            took = (MESSAGE_US + size / gb_s / 1e3) * self._noise(*key)
            self._messages[key] = Message(took)
        return self._messages[key]

    def _next(self, *caller: int) -> int:
        self._called[caller] += 1
        return self._called[caller] - 1

    def _noise(self, *what: int) -> float:
        dice = random.Random(f"{self.seed}:{self.name}:{what}")
        return 1 + abs(dice.gauss(0, SPREAD))
