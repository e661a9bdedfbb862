"""Stages whose forward and backward passes alternate, each with ranks that share its tensors."""

from __future__ import annotations

import pytest

from benchmarks.faults.loop import Loop
from commtrace.rules import diagnose

STAGES, SHARES, LAYERS, MICRO = 4, 3, 2, 6
SLOW = 7  # the second rank of stage 2
Pass = tuple[str, int]


def schedule() -> list[tuple[int, str]]:
    """One forward, one backward: all stages' turns in an order in which they can be taken."""
    turns = {stage: _turns(stage) for stage in range(STAGES)}
    done: set[tuple[int, Pass]] = set()
    order = []
    while any(turns.values()):
        for stage, its in turns.items():
            before = stage - 1 if its and its[0][0] == "forward" else stage + 1
            if its and (before in (-1, STAGES) or (before, its[0]) in done):
                done.add((stage, its[0]))
                order.append((stage, its.pop(0)[0]))
    return order


def _turns(stage: int) -> list[Pass]:
    ahead = min(STAGES - 1 - stage, MICRO)
    its: list[Pass] = [("forward", number) for number in range(ahead)]
    for number in range(MICRO - ahead):
        its += [("forward", ahead + number), ("backward", number)]
    return its + [("backward", MICRO - ahead + number) for number in range(ahead)]


def pipeline(slow: float = 1.0) -> Loop:
    """A backward pass takes twice as long as a forward, and sums up tensors of the same size."""
    loop = Loop(3, ranks=STAGES * SHARES, steps=4, host_leads=True)
    loop.spread, loop.speed[SLOW] = 0.002, slow
    ranks_of = [range(stage * SHARES, (stage + 1) * SHARES) for stage in range(STAGES)]
    loop.run.groups |= {f"tp{number}": tuple(its) for number, its in enumerate(ranks_of)}
    for _ in range(loop.steps):
        with loop.step():
            for stage, way in schedule():
                to = stage + 1 if way == "forward" else stage - 1
                ranks, group = ranks_of[stage], f"tp{stage}"
                for _ in range(LAYERS):
                    for rank in ranks:
                        loop.compute(rank, 500 if way == "forward" else 1000)
                    loop.together("all_reduce", 1_000_000, ranks=ranks, group=group, wait=True)
                for rank in ranks if 0 <= to < STAGES else ():
                    loop.message(rank, rank + (to - stage) * SHARES, 100_000, stream=30 + to)
    return loop


def test_a_slow_gpu_is_told_from_those_that_share_its_stage() -> None:
    slow, usual = pipeline(1.3), pipeline()
    found = diagnose(slow.trace()).findings[0]
    assert (found.rule, found.ranks) == ("straggler", (SLOW,))
    costs_us = slow.elapsed_us() - usual.elapsed_us()
    assert found.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.05)


def test_of_equal_gpus_none_is_slow() -> None:
    rules = {found.rule for found in diagnose(pipeline().trace()).findings}
    assert not rules & {"straggler", "late-sender", "late-receiver"}
