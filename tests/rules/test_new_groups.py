"""Process groups that a program makes in its loop."""

from __future__ import annotations

from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEP_US, STEPS = 10_000, 8


def averaging(*, made: range, unused_steps: int = 0) -> Measures:
    """Two CPUs reduce gradients, then for 1 ms run nothing, and reduce a loss in another group.

    That of the step's number, if it is made there; else the one that was made first.
    """
    run = Tiny(2, backend="gloo")
    for step, rank in product(range(STEPS), range(2)):
        begun = STEP_US * step
        run.step(rank, step, begun, STEP_US)
        run.op(rank, begun, 5_000)
        call = {"thread": 1, "asynchronous": 0, "stream": 50}
        group = str(1 + step * (step in made))
        run.groups[group] = (0, 1)
        launched = BASE_NS + 1_000 * (begun + 5_000)
        run.collective(
            rank, "all_reduce", begun + 5_050, 1_950, size=1 << 20, launch_ns=launched, **call
        )
        run.gap(rank, begun + 5_000, 2_000)
        if step < STEPS - unused_steps:
            launched = BASE_NS + 1_000 * (begun + 8_000)
            its = {"size": 4, "group": group, "launch_ns": launched, "seq": None}
            run.collective(rank, "all_reduce", begun + 8_050, 150, **its, **call)
            run.gap(rank, begun + 7_000, 1_200)
    return run.trace()


def found(run: Measures) -> list[Finding]:
    its = diagnose(run, select=["redundant"]).findings
    return [one for one in its if "a process group is made in every step" in one.summary]


@pytest.mark.parametrize("unused", [0, 2])
def test_making_a_group_in_every_step_costs_what_runs_no_operator_before(unused: int) -> None:
    (finding,) = found(averaging(made=range(STEPS), unused_steps=unused))
    assert finding.cost_ns == pytest.approx((STEPS - unused) * 1e6, rel=0.06)
    assert finding.advice.startswith("make it once, before the loop")


@pytest.mark.parametrize(
    "run",
    [
        averaging(made=range(0)),
        averaging(made=range(4)),  # and then used again and again
        averaging(made=range(STEPS), unused_steps=4),
    ],
)
def test_groups_that_are_used_again_or_seldom_made_cost_little(run: Measures) -> None:
    assert not found(run)
