"""Communication that nobody needs, that is uneven, or that ranks disagree about."""

# ruff: noqa: ARG001 - all faults are called alike
from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import everyone_computes, plain, size_for

__all__ = ["FAULTS"]


def accumulated(loop: Loop, share: float, present: bool) -> Truth:
    """Four micro-batches, each of which reduces all gradients."""
    size = size_for(loop, "all_reduce", share * loop.step_us / 3)

    def micro_batches() -> None:
        for micro in range(4):
            for rank in loop.everyone:
                loop.stall(rank, 2)
            begun = list(loop.host)
            everyone_computes(loop, 0.05, kernels=1)
            for rank in loop.everyone:
                lasts = loop.host[rank] - begun[rank]
                label = "DistributedDataParallel.forward"
                loop.run.step(rank, loop.number, begun[rank], lasts, label)
            everyone_computes(loop, 0.1, kernels=2, place="backward")
            if present or micro == 3:
                loop.together("all_reduce", size, wait=True)

    loop.hooks["end"].append(micro_batches)
    says = "after every micro-batch"
    return Truth("redundant", (), says, also=("exposed-communication",))


def twice(loop: Loop, share: float, present: bool) -> Truth:
    """What all ranks reduced is reduced again by half of them each."""
    halves = loop.everyone[: loop.ranks // 2], loop.everyone[loop.ranks // 2 :]
    for members in halves:
        loop.run.groups[f"{members}"] = members
    size = size_for(loop, "all_reduce", share * loop.step_us, loop.ranks // 2)

    def reduces() -> None:
        loop.together("all_reduce", size, wait=True)
        for members in halves if present else ():
            loop.together("all_reduce", size, wait=True, ranks=members, group=f"{members}")

    loop.hooks["end"].append(reduces)
    return Truth("redundant", (), "reduced twice", also=("exposed-communication",))


def barriers(loop: Loop, share: float, present: bool) -> Truth:
    """A barrier before each of a few collectives."""
    us = share * loop.step_us / 3
    size = size_for(loop, "all_reduce", 0.005 * loop.step_us + loop.latency_us)

    def each() -> None:
        for _ in range(3):
            if present:
                loop.together("barrier", None, us=us, wait=True)
            loop.together("all_reduce", size, wait=True)

    loop.hooks["end"].append(each)
    return Truth("redundant", (), "barriers", also=("exposed-communication",))


def uneven_all_to_all(loop: Loop, share: float, present: bool) -> Truth:
    """One rank's experts are popular. Without: the same bytes, evenly."""
    heavy = loop.dice.randrange(loop.ranks)
    times = loop.dice.uniform(1.3, min(3.0, 0.9 * loop.ranks))
    mean = size_for(loop, "all_to_all", share * loop.step_us / (times - 1))
    rest = (loop.ranks - times) / (loop.ranks - 1)
    parts = {rank: times if rank == heavy else rest for rank in loop.everyone}

    def exchanges() -> None:
        sizes = {rank: round(mean * (part if present else 1)) for rank, part in parts.items()}
        loop.exchange(sizes)

    loop.hooks["end"].append(exchanges)
    return Truth("uneven-all-to-all", (heavy,), also=("exposed-communication",))


def desync(loop: Loop, share: float, present: bool) -> Truth:
    """Once one rank calls another operation, or the same with another type."""
    odd = loop.dice.randrange(loop.ranks) if loop.ranks > 2 else 1
    when = loop.dice.randrange(3, loop.steps)
    other_op = loop.dice.random() < 0.5

    def once() -> None:
        if loop.number == when:
            other: dict[str, str] = {"op": "broadcast"} if other_op else {"dtype": "bfloat16"}
            loop.together("all_reduce", 400_000, own={odd: other}, wait=True)
            other = {"op": "all_reduce"} if other_op else {}
            loop.together("broadcast", 400_000, own={odd: other}, wait=True)

    loop.hooks["end"].append(once)
    return Truth("desync", (odd,))


FAULTS = (
    Fault("redundant", accumulated, plain),
    Fault("redundant", twice, job=lambda seed: Loop(seed, ranks=8 if seed % 8 < 2 else 4)),
    Fault("redundant", barriers),
    Fault("uneven-all-to-all", uneven_all_to_all),
    Fault("desync", desync, timed=False),
)
