"""Sends and receives: late sides, pipelines, one slow link."""

from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import everyone_computes

__all__ = ["FAULTS"]


def pairs(loop: Loop) -> None:
    """Every even rank makes what the next odd one works on."""
    for _ in range(loop.steps):
        with loop.step():
            for rank in range(0, loop.ranks, 2):
                loop.compute(rank, loop.step_us)
            loop.at("before")
            for rank in range(0, loop.ranks, 2):
                loop.message(rank, rank + 1, 8_000_000)
                loop.compute(rank + 1, loop.step_us)
            loop.at("after")


def late_sender(loop: Loop, share: float, present: bool) -> Truth:
    """One sender makes its message more slowly than it is used."""
    sender = 2 * loop.dice.randrange(loop.ranks // 2)
    more = share * loop.step_us * present
    loop.hooks["before"].append(lambda: loop.busy(sender, more))
    return Truth("late-sender", (sender,), "sending rank", also=("exposed-communication",))


def late_receiver(loop: Loop, share: float, present: bool) -> Truth:
    """One receiver uses its message more slowly than the next is made."""
    receiver = 2 * loop.dice.randrange(loop.ranks // 2) + 1
    more = share * loop.step_us * present
    loop.hooks["after"].append(lambda: loop.busy(receiver, more))
    return Truth("late-receiver", (receiver,), "receiving rank", also=("exposed-communication",))


def pipeline_bubble(loop: Loop, share: float, present: bool) -> Truth:
    """Too few micro-batches for the stages. Without: the same work in four times as many."""
    loop.micro_batches = max(2, round((loop.ranks - 1) * (1 - share) / share))
    loop.micro_batches *= 1 if present else 4
    also = ("late-sender", "late-receiver", "exposed-communication")
    return Truth("pipeline-bubble", loop.everyone, also=also)


def stages(loop: Loop) -> None:
    """All micro-batches forward through the stages, then all back."""
    part = loop.step_us / loop.micro_batches
    for _ in range(loop.steps):
        with loop.step():
            for _ in range(loop.micro_batches):
                for stage in loop.everyone:
                    loop.compute(stage, part / 3)
                    if stage + 1 < loop.ranks:
                        loop.message(stage, stage + 1, 100_000)
            for _ in range(loop.micro_batches):
                for stage in reversed(loop.everyone):
                    loop.compute(stage, 2 * part / 3)
                    if stage:
                        loop.message(stage, stage - 1, 100_000, stream=31)


def slow_link(loop: Loop, share: float, present: bool) -> Truth:
    """In a ring, one rank's messages to the next take longer."""
    source = loop.dice.randrange(loop.ranks)
    to = (source + 1) % loop.ranks
    more = share * loop.step_us * present
    size = round(loop.gb_s * 1e3 * 0.04 * loop.step_us)

    def around() -> None:
        for rank in loop.everyone:
            us = more if rank == source else 0.0
            stream = 40 + rank % 2
            loop.message(rank, (rank + 1) % loop.ranks, size, us=us, stream=stream, wait=False)
        loop.synchronise(40)
        loop.synchronise(41)

    loop.hooks["end"].append(around)
    also = ("exposed-communication", "late-sender", "late-receiver")
    return Truth("slow-link", tuple(sorted((source, to))), f"rank {source} → rank {to}", also)


def ring(loop: Loop) -> None:
    """Everybody computes and passes on."""
    for _ in range(loop.steps):
        with loop.step():
            everyone_computes(loop, 0.9, kernels=6)
            loop.at("end")


def _even(seed: int) -> Loop:
    return Loop(seed, ranks=4 if seed % 4 < 2 else 2)


FAULTS = (
    Fault("late-sender", late_sender, pairs, _even),
    Fault("late-receiver", late_receiver, pairs, _even),
    Fault("pipeline-bubble", pipeline_bubble, stages, lambda seed: Loop(seed, ranks=2, steps=5)),
    Fault("slow-link", slow_link, ring, lambda seed: Loop(seed, ranks=8 if seed % 8 < 2 else 4)),
)
