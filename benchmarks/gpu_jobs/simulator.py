"""A job in the making: its ranks run their programs until they wait for one another.

Nothing is written down as late or slow: it comes out so, because a stream was busy, a host
had not launched yet, or a rank was missing. So the job without its fault tells what that cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.gpu_jobs.groups import Group
from benchmarks.gpu_jobs.rank import Blocking, Rank

__all__ = ["Simulation"]

FIRST_STREAM, STREAMS_APART = 20, 4  # of the groups' communicators


class Simulation:
    """So many ranks on hosts with so many GPUs, and their groups.

    ``clock_us`` is how far each rank's clock is off at the start, ``clock_drift`` how much
    more per µs. With ``shapes`` the profiler records the inputs' shapes.
    """

    def __init__(
        self, ranks: int, seed: int, *, gpus_per_host: int = 8, shapes: bool = False
    ) -> None:
        self.seed, self.gpus_per_host, self.shapes = seed, gpus_per_host, shapes
        self.ranks = [Rank(number, seed, shapes=shapes) for number in range(ranks)]
        self.groups: list[Group] = []
        self.clock_us = [0.0] * ranks
        self.clock_drift = [0.0] * ranks

    def group(
        self, ranks: Iterable[int] | None = None, description: str = "default_pg", **more: Any
    ) -> Group:
        """A further group, of all ranks unless given; those of a description share a stream."""
        members = range(len(self.ranks)) if ranks is None else ranks
        others = dict.fromkeys([*(group.description for group in self.groups), description])
        stream = FIRST_STREAM + STREAMS_APART * [*others].index(description)
        name = str(len(self.groups))
        group = Group(name, tuple(members), description, stream, seed=self.seed, **more)
        self.groups.append(group)
        return group

    def run(self, program: Callable[[Rank], Blocking]) -> Simulation:
        """Let each rank run its program to the end."""
        running = {rank: program(rank) for rank in self.ranks}
        while running or not all(rank.device.idle for rank in self.ranks):
            moved = False
            for rank, its in [*running.items()]:
                before = rank.time
                if next(its, self) is self:
                    del running[rank]
                moved |= rank not in running or rank.time > before
            while any(rank.device.advance() for rank in self.ranks):
                moved = True
            assert moved, f"ranks {[rank.number for rank in running]} wait for ever"
        return self

    @property
    def step_ms(self) -> float:
        """The time from the first host's start to the last kernel's end, by step."""
        ends = [work.end or 0.0 for rank in self.ranks for work in rank.device.work]
        began = min(rank.began for rank in self.ranks)
        return (max(ends) - began) / 1e3 / len(self.ranks[0].steps)
