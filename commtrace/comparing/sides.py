"""The recordings of one side of a comparison, and their steps that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commtrace.arrays import Bool, Float64
from commtrace.comparing.sample import Own, Sample, Shared

__all__ = ["Recording", "Side", "in_turn"]


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording, and a flag for each of its steps that counts; or that is ``warm_up``.

    ``foreign`` is the share of the cores that other processes took meanwhile; ``started`` says
    when it was recorded, nothing if that is unknown; ``gpu_hosts`` are the hosts of its GPUs, None
    without any.
    """

    sample: Sample
    counts: Bool
    warm_up: Bool
    foreign: float = 0.0
    started: str = ""
    gpu_hosts: frozenset[str] | None = None

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that count."""
        return tuple(np.asarray(self.sample.steps, dtype=np.int64)[self.counts].tolist())

    @property
    def step_ns(self) -> Float64:
        """How long each step is that counts."""
        return self._counting(self.sample.step_ns)

    def path(self, key: Own | Shared) -> Float64:
        """The time on the critical path, of any rank, in each step that counts."""
        times = (time for (its, _), time in self.sample.path_ns.items() if its == key)
        return self._counting(sum(times, np.zeros(self.counts.size)))

    def of_kind(self, kind: str) -> float:
        """The mean of the time on the critical path of one kind."""
        times = (time for (its, _), time in self.sample.path_ns.items() if its.kind == kind)
        return float(self._counting(sum(times, np.zeros(self.counts.size))).mean())

    def of_step(self, at: int) -> dict[str, int]:
        """The critical path of one step by kind, counting or not; ``at`` counts from 0."""
        sums: dict[str, int] = {}
        for (key, _), time in self.sample.path_ns.items():
            sums[key.kind] = sums.get(key.kind, 0) + int(time[at])
        return dict(sorted(sums.items()))

    def on_path(self, key: Own, rank: int) -> float:
        """The mean of a rank's time on the critical path."""
        return float(self._counting(self.sample.path_ns.get((key, rank))).mean())

    def own(self, key: Own, rank: int) -> Float64:
        """What a rank did by itself in each step that counts."""
        return self._counting(self.sample.own_ns.get((key, rank)))

    def _counting(self, times: object) -> Float64:
        if times is None:
            return np.zeros(int(self.counts.sum()))
        return np.asarray(times, dtype=np.float64)[self.counts]


Side = Sequence[Recording]


def in_turn(base: Side, candidate: Side) -> bool:
    """Whether they were recorded in turn: one of each, then one of each again."""
    started = sorted(
        (its.started, side)
        for side, recordings in enumerate((base, candidate))
        for its in recordings
    )
    order = [side for _, side in started]
    pairs = [{*order[at : at + 2]} for at in range(0, len(order), 2)]
    return all(time for time, _ in started) and all(pair == {0, 1} for pair in pairs)
