"""A rank whose core something else takes."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, WORKS_US, STEP_US = 6, 20_000, 42_000


def found(*waited_us: list[int], **last: Any) -> list[Finding]:
    """Ranks compute for 20 ms and wait so long for a core in each step; all meet behind it."""
    ranks = []
    for rank, waits in enumerate(waited_us):
        steps = [(step, WORKS_US, us, WORKS_US) for step, us in enumerate(waits)]
        its = {"cores": 2, "usable_cores": 2, "processes": 2, "threads": 1, "steps": steps}
        is_last = rank == len(waited_us) - 1
        ranks.append({"rank": rank, "machine": {**its, **(last if is_last else {})}})
    run = Tiny(len(waited_us), backend="gloo", manifest={"ranks": ranks})
    for step in range(STEPS):
        start = STEP_US * step
        for rank, waits in enumerate(waited_us):
            run.step(rank, step, start, STEP_US)
            run.op(rank, start, WORKS_US + waits[step])
            called = start + WORKS_US + waits[step] + 10
            done = start + WORKS_US + max(each[step] for each in waited_us) + 1_010
            call = {"thread": 1, "stream": 50, "asynchronous": 0}
            run.collective(rank, "all_reduce", called, done - called, size=1 << 20, **call)
            run.gap(rank, called, done - called)
    return list(diagnose(run.trace(), select=["contention"]).findings)


def test_a_rank_that_is_bound_to_it() -> None:
    (finding,) = found([200] * STEPS, [20_000] * STEPS, usable_cores=1, core_ids=[1])
    assert finding.summary.startswith("rank 1 waits for a core for 20 ms of each step, others for")
    assert finding.summary.endswith("something else runs on its own (it is bound to core 1)")
    assert finding.ranks == (1,)
    assert finding.cost_ns == pytest.approx(STEPS * 19.8e6, rel=0.02)
    assert finding.confidence == "medium"


def test_threads_of_its_own_take_it() -> None:
    steps = [(step, WORKS_US, 20_000, WORKS_US + 18_000) for step in range(STEPS)]
    (finding,) = found([200] * STEPS, [20_000] * STEPS, steps=steps)
    assert finding.summary.endswith("other threads of its own run for 18 ms meanwhile")
    assert finding.advice.startswith("a thread beside the one that trains")
    assert finding.confidence == "medium"


def test_one_that_is_not_bound_may_have_it_by_chance() -> None:
    (finding,) = found([200] * STEPS, [20_000] * STEPS)
    assert "not sure: it may be chance" in finding.summary
    assert finding.confidence == "low"


@pytest.mark.parametrize(
    "waited_us",
    [
        ([20_000] * STEPS, [20_000] * STEPS),
        ([6_000] * STEPS, [20_000] * STEPS),  # others wait, too
        ([0] * STEPS, [20_000, 0] * (STEPS // 2)),  # in some steps
        ([0] * STEPS, [2_000] * STEPS),
        ([20_000] * STEPS,),
    ],
    ids=["both", "less", "now and then", "little", "alone"],
)
def test_all_else_is_none(waited_us: tuple[list[int], ...]) -> None:
    assert not found(*waited_us)
