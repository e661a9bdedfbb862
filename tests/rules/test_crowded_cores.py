"""Processes with more threads than cores."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS = 4


def machine(threads: int, waited_us: int, **other: Any) -> dict[str, Any]:
    """What a rank notes that runs 20 ms of each step, and waits so long for one of two cores."""
    steps = [(step, 20_000, waited_us, 20_000) for step in range(STEPS)]
    return {"usable_cores": 2, "processes": 2, "threads": threads, "steps": steps, **other}


def found(*machines: dict[str, Any], steps: int = STEPS) -> list[Finding]:
    ranks = [{"rank": rank, "machine": its} for rank, its in enumerate(machines)]
    run = Tiny(len(machines), backend="gloo", manifest={"ranks": ranks})
    for step in range(STEPS):
        for rank in range(len(machines)):
            if step < steps:
                run.step(rank, step, 40_000 * step, 40_000)
            run.op(rank, 40_000 * step, 38_000)
            run.collective(rank, "all_reduce", 40_000 * step + 38_000, 1_000, size=1 << 20)
    return list(diagnose(run.trace(), select=["contention"]).findings)


def test_threads_without_a_core() -> None:
    (finding,) = found(machine(4, 16_000), machine(4, 15_000))
    assert "2 processes of 4 threads each share 2 cores" in finding.summary
    assert "16 ms of each step" in finding.summary
    assert "set_num_threads(1)" in finding.advice
    assert finding.ranks == ()
    assert finding.cost_ns == 0
    assert finding.confidence == "medium"


def test_the_rank_that_has_too_many() -> None:
    (finding,) = found(machine(1, 16_000), machine(4, 2_000))
    assert finding.ranks == (1,)
    assert "of 1 to 4 threads" in finding.summary


def test_what_others_took() -> None:
    busy = {"cores": 2, "seconds": 1.0, "busy_s": 2.0, "own_s": 0.6}
    (finding,) = found(machine(4, 16_000, **busy), machine(4, 15_000, **busy))
    assert finding.confidence == "low"
    assert "other processes took 40 % of the cores" in finding.summary


@pytest.mark.parametrize(
    "machines",
    [
        (machine(1, 16_000), machine(1, 16_000)),  # as many as cores, others must have them
        (machine(4, 1_000), machine(4, 1_000)),
        (machine(4, 16_000, usable_cores=8), machine(4, 16_000, usable_cores=8)),
        (machine(4, 16_000, processes=3), machine(4, 16_000, processes=3)),  # one is not known
        (machine(4, 16_000, steps=None), machine(4, 16_000, steps=None)),
        (machine(4, 16_000, cores=4), machine(4, 16_000, cores=4)),  # each may have two of its own
    ],
)
def test_all_else_is_none(machines: tuple[dict[str, Any], ...]) -> None:
    assert not found(*machines)


def test_a_trace_without_steps_is_none() -> None:
    assert not found(machine(4, 16_000), machine(4, 16_000), steps=0)


def bound(*core_ids: list[int], waited_us: int = 16_000) -> list[Finding]:
    """Ranks of one thread each, on a host of four cores, bound to these."""
    its = {"cores": 4, "processes": len(core_ids)}
    machines = (
        machine(1, waited_us, usable_cores=len(ids), core_ids=ids, **its) for ids in core_ids
    )
    return found(*machines)


def test_processes_that_are_bound_to_one_core() -> None:
    (finding,) = bound([2], [2])
    assert "2 processes of 1 thread each are bound to 1 core" in finding.summary
    assert "16 ms of each step" in finding.summary
    assert finding.advice.startswith("bind each process to cores of its own")
    (finding,) = bound([0], [2], [2])
    assert finding.ranks == (1, 2)


@pytest.mark.parametrize("core_ids", [([1], [2]), ([0, 1], [0, 1]), ([0, 1, 2, 3],) * 2])
def test_processes_with_cores_enough_are_none(core_ids: tuple[list[int], ...]) -> None:
    assert not bound(*core_ids)


def test_bound_processes_that_hardly_wait_are_none() -> None:
    assert not bound([2], [2], waited_us=500)
