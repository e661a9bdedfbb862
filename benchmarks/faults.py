"""Training runs with one known fault, or none: what the diagnosis is judged on.

An NCCL-like data-parallel loop: every step computes, reduces its gradients in buckets on a
stream of their own, and updates. Sizes, speeds and noise vary with the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from commtrace.rules._tiny import Tiny
from commtrace.trace import Trace

__all__ = ["CLEAN", "FAULTS", "Case"]

STEPS = 12


@dataclass(frozen=True)
class Case:
    """A run and its truth: the rule that must speak, and of whom. ``gain_us`` per run."""

    trace: Trace
    rule: str | None
    ranks: tuple[int, ...] = ()
    gain_us: float | None = None


class Loop:
    """One run in the making: the clocks of every rank's compute and communication stream."""

    def __init__(self, seed: int, ranks: int | None = None) -> None:
        self.random = random.Random(seed)
        self.ranks = ranks or self.random.choice([2, 4, 8])
        self.run = Tiny(self.ranks)
        self.now = [0.0] * self.ranks
        self.comm = [0.0] * self.ranks
        self.gb_s = self.random.uniform(80, 300)
        self.latency_us = self.random.uniform(8, 20)
        self.compute_us = self.random.uniform(1500, 4000)
        self.buckets = [self.random.randrange(8, 40) * 1_000_000 for _ in range(3)]

    def noise(self, share: float = 0.02) -> float:
        return 1 + self.random.gauss(0, share)

    def compute(self, rank: int, microseconds: float) -> None:
        self.run.kernel(rank, self.now[rank], microseconds)
        self.now[rank] += microseconds + 1

    def wire_us(self, op: str, size: int) -> float:
        n = self.ranks
        factor = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(op, (n - 1) / n)
        return self.latency_us + size * factor / self.gb_s / 1e3

    def together(self, op: str, size: int, *, wait: bool = False, **more: object) -> None:
        """One operation on all ranks: everybody waits for the last, then it transfers."""
        arrivals = [max(self.comm[r], self.now[r]) + 2 for r in range(self.ranks)]
        end = max(arrivals) + self.wire_us(op, size) * self.noise()
        for rank, arrival in enumerate(arrivals):
            mine = end + abs(self.random.gauss(0, 1))
            self.run.collective(rank, op, arrival, mine - arrival, size=size, **more)  # type: ignore[arg-type]
            self.comm[rank] = mine
            if wait:
                self.now[rank] = mine + 1

    def step(self, number: int, extra: Callable[[int], float] = lambda _: 0.0) -> None:
        """Forward, backward with buckets reduced under it, wait, update."""
        begun = list(self.now)
        for rank in range(self.ranks):
            self.compute(rank, self.compute_us * self.noise())
        for size in self.buckets:
            for rank in range(self.ranks):
                more = extra(rank) / len(self.buckets)
                self.compute(rank, self.compute_us * 0.6 * self.noise() + more)
            self.together("all_reduce", size)
        for rank in range(self.ranks):
            self.now[rank] = max(self.now[rank], self.comm[rank]) + 1
            self.compute(rank, self.compute_us * 0.2 * self.noise())
            self.run.step(rank, number, begun[rank] - 1, self.now[rank] - begun[rank] + 1)

    def steps(self, extra: Callable[[int], float] = lambda _: 0.0) -> None:
        for number in range(STEPS):
            self.step(number, extra)


def clean_training(seed: int) -> Case:
    """Nothing is wrong."""
    loop = Loop(seed)
    loop.steps()
    return Case(loop.run.trace(), None)


def straggler(seed: int) -> Case:
    """One rank computes longer, by 6 to 40 % of the step."""
    loop = Loop(seed)
    slow = loop.random.randrange(loop.ranks)
    step_us = loop.compute_us * 3
    late_us = step_us * loop.random.uniform(0.08, 0.4)
    loop.steps(lambda rank: late_us if rank == slow else 0.0)
    return Case(loop.run.trace(), "straggler", (slow,), late_us * STEPS)


def decomposed(seed: int) -> Case:
    """A reduce and a broadcast in place of an all_reduce that runs beside them."""
    loop = Loop(seed)
    size = loop.random.randrange(40, 160) * 1_000_000
    for number in range(STEPS):
        loop.step(number)
        loop.together("all_reduce", size, wait=True)
        loop.together("reduce", size, wait=True, root=0)
        loop.together("broadcast", size, wait=True, root=0)
    return Case(loop.run.trace(), "decomposed-all-reduce")


def inflated(seed: int) -> Case:
    """A reduce_scatter whose output is as large as the tensor, then an all_gather of it."""
    loop = Loop(seed, 4)
    size = loop.random.randrange(20, 60) * 1_000_000
    for number in range(STEPS):
        loop.step(number)
        loop.together("all_reduce", size, wait=True)
        loop.together("reduce_scatter", size * loop.ranks, wait=True)
        loop.together("all_gather", size * loop.ranks, wait=True)
    return Case(loop.run.trace(), "byte-inflation")


def small_messages(seed: int) -> Case:
    """Two hundred tiny all_reduces a step, among large ones that show the model."""
    loop = Loop(seed)
    for number in range(STEPS):
        loop.step(number)
        for _ in range(200):
            loop.together("all_reduce", loop.random.randrange(1, 64) * 1024, wait=True)
    return Case(loop.run.trace(), "latency-bound")


def pageable(seed: int) -> Case:
    """Every step's batch comes from pageable memory; another, as large, from pinned."""
    loop = Loop(seed)
    size = loop.random.randrange(40, 120) * 1_000_000
    for number in range(STEPS):
        for rank in range(loop.ranks):
            for memory, gb_s in (("pageable", 5.0), ("pinned", 24.0)):
                took = size / gb_s / 1e3 * loop.noise()
                loop.run.copy(
                    rank,
                    loop.now[rank],
                    took,
                    kind="HtoD",
                    size=size,
                    source="host",
                    destination="cuda:0",
                    memory=memory,
                )
                loop.now[rank] += took + 1
        loop.step(number)
    return Case(loop.run.trace(), "pageable-copy")


def uneven_peers(seed: int) -> Case:
    """Copies from one GPU to two others, one far slower."""
    loop = Loop(seed, 1)
    slow = loop.random.uniform(6, 15)
    for i in range(12):
        for number, gb_s in ((1, 90.0), (2, slow)):
            took = 40_000_000 / gb_s / 1e3 * loop.noise(0.003)
            loop.run.copy(
                0,
                loop.now[0],
                took,
                kind="PtoP",
                size=40_000_000,
                destination=f"cuda:{number}",
                stream=20 + number,
            )
            loop.now[0] += took + 5
        if i == 0:
            loop.compute(0, 100)
    return Case(loop.run.trace(), "uneven-p2p-bandwidth", (0,))


def late_root(seed: int) -> Case:
    """A broadcast in every step whose root computes on before it sends."""
    loop = Loop(seed)
    root = loop.random.randrange(loop.ranks)
    late_us = loop.compute_us * loop.random.uniform(0.5, 1.5)
    for number in range(STEPS):
        loop.step(number)
        loop.compute(root, late_us)
        loop.together("broadcast", 20_000_000, wait=True, root=root)
    return Case(loop.run.trace(), "late-root", (root,), late_us * STEPS)


def uneven_all_to_all(seed: int) -> Case:
    """One rank sends and receives far more than the others."""
    loop = Loop(seed, 4)
    heavy = loop.random.randrange(4)
    for number in range(STEPS):
        loop.step(number)
        begun = [max(loop.now[r], loop.comm[r]) + 2 for r in range(4)]
        sizes = [30_000_000 * (3 if r == heavy else 1) for r in range(4)]
        end = max(begun) + loop.wire_us("all_to_all", max(sizes)) * loop.noise()
        for rank in range(4):
            loop.run.collective(
                rank,
                "all_to_all",
                begun[rank],
                end - begun[rank],
                in_bytes=sizes[rank],
                out_bytes=sizes[rank],
            )
            loop.now[rank] = loop.comm[rank] = end + 1
    return Case(loop.run.trace(), "uneven-all-to-all")


def exposed(seed: int) -> Case:
    """Every reduction is waited for at once, though the next layers' compute is independent."""
    loop = Loop(seed)
    loop.gb_s = 40
    for number in range(STEPS):
        begun = list(loop.now)
        for _ in range(3):
            for rank in range(loop.ranks):
                loop.compute(rank, loop.compute_us * loop.noise())
            loop.together("all_reduce", 60_000_000, wait=True)
        for rank in range(loop.ranks):
            loop.run.step(rank, number, begun[rank] - 1, loop.now[rank] - begun[rank] + 1)
    return Case(loop.run.trace(), "exposed-communication")


FAULTS: tuple[Callable[[int], Case], ...] = (
    straggler,
    decomposed,
    inflated,
    small_messages,
    pageable,
    uneven_peers,
    late_root,
    uneven_all_to_all,
    exposed,
)
CLEAN: tuple[Callable[[int], Case], ...] = (clean_training,)
