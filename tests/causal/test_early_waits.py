"""Waits on CPUs that come before the work that could hide them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from commtrace.causal.edits.early_waits import early_waits
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

MS = 1_000_000
LAYERS, STEPS = 4, 4
GRADIENT = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
STEP_US = 5_000 + LAYERS * 4_000


def trained(
    hook: str = GRADIENT,
    *,
    ddp: bool = False,
    caller: str = "c10d::allreduce_",
    late_us: int = 0,
    **machine: float,
) -> Measures:
    """Backward passes that reduce each layer's gradient, 1 ms, and wait before the next's 3 ms."""
    rows = [{"rank": rank, "machine": machine} for rank in range(2)]
    run = Tiny(2, backend="gloo", manifest={"ranks": rows} if machine else None)
    for step in range(STEPS):
        for rank in range(2):
            at = step * STEP_US
            run.step(rank, step, at, STEP_US)
            if ddp:
                run.step(rank, step, at, 1_000, "DistributedDataParallel.forward")
            run.op(rank, at, 1_000)
            at += 1_000
            for _ in range(LAYERS):
                run.op(rank, at, 2_990, name=BACKWARD)
                run.op(rank, at + 2_995, 1_005, name=hook)
                run.op(rank, at + 3_000, 20 + late_us, name=caller, kind="communication")
                launch = BASE_NS + round(1e3 * (at + 3_000))
                run.collective(
                    *(rank, "all_reduce", at + 3_020, 970),
                    size=1 << 22,
                    asynchronous=1,
                    thread=1,
                    launch_ns=launch,
                )
                run.gap(rank, at + 3_000 + late_us, 992 - late_us)
                at += 4_000
            run.op(rank, at, 4_000, name="Optimizer.step")
    return run.trace()


def found(run: Measures) -> list[Finding]:
    return list(diagnose(run, select=["false-overlap"]).findings)


def test_gradients_that_are_awaited_in_their_hooks_overlap_nothing() -> None:
    """All but the last of each step: behind that the backward pass is over."""
    run = trained()
    waits = early_waits(run)
    assert waits.early.all()
    assert waits.gradients.all()
    assert sorted(set((waits.behind_ns // 1_000).tolist())) == [10, 3_010]
    (its,) = found(run)
    assert its.cost_ns == pytest.approx((LAYERS - 1) * STEPS * 0.992 * MS, rel=0.02)
    assert its.cost_on_top_ns == its.cost_ns
    assert its.replayed_step_ns == pytest.approx(STEP_US * 1_000 - 3 * 0.992 * MS, rel=0.02)
    assert (its.confidence, its.place) == ("medium", "behind the all_reduce of dp")
    assert "behind backward()" in its.advice
    assert any("result that is needed" in one for one in its.ruled_out)


def test_whether_other_results_are_needed_is_not_known() -> None:
    (its,) = found(trained("autograd::engine::evaluate_function: SumOverRanksBackward"))
    assert its.confidence == "low"
    assert "does not need the result" in its.advice


def test_waits_that_no_program_can_move_are_no_false_overlap() -> None:
    assert not found(trained(ddp=True))
    assert not found(trained("_Reduce", caller="_c10d_functional::all_reduce"))


def test_no_more_is_saved_than_the_cores_are_idle() -> None:
    """The ranks' processes took 93 % of the two cores that both may use."""
    machine = {"cores": 2, "usable_cores": 2, "seconds": 1.0, "own_s": 0.93}
    (its,) = found(trained(**machine))
    assert its.cost_ns == pytest.approx(0.07 * (STEPS * STEP_US - 4_000) * 1_000, rel=0.02)
    assert its.replayed_step_ns == pytest.approx(0.93 * STEP_US * 1_000, rel=0.02)
    assert not found(trained(**{**machine, "own_s": 0.97}))


def test_nor_is_more_than_that_hidden() -> None:
    """Of four cores the two processes take half, and nine tenths."""
    costs = []
    for own_s in (1.0, 1.8):
        machine = {"cores": 4, "usable_cores": 4, "seconds": 1.0, "own_s": own_s}
        (its,) = diagnose(trained(**machine), select=["exposed-communication"]).findings
        costs.append(its.cost_ns)
    assert costs[1] == pytest.approx(0.1 * STEPS * STEP_US * 1_000, rel=0.1)
    assert costs[0] > 1.2 * costs[1]


@pytest.mark.parametrize(
    ("transfer_us", "cores", "costs"), [(5_000, 2, [0]), (1_000, 2, []), (5_000, 8, [25_250_000])]
)
def test_where_no_core_is_idle_much_exposed_communication_has_no_saving(
    training: Callable[..., Measures], transfer_us: int, cores: int, costs: list[int]
) -> None:
    """Overlapping saves nothing on two cores that two ranks fill, and all of it on eight."""
    run = training(
        lambda rank, step: 10_000, transfer_us=lambda rank, step: transfer_us, cores=cores
    )
    diagnosis = diagnose(run, select=["exposed-communication"])
    assert [one.cost_ns for one in diagnosis.findings] == pytest.approx(costs, rel=0.05)
    if not costs:
        assert "needs idle cores" in diagnosis.skipped["exposed-communication"]
    elif not costs[0]:
        (finding,) = diagnosis.findings
        assert finding.confidence == "low"
        assert "most of it all_reduce" in finding.summary
        assert "so that overlapping would save nothing" in finding.summary


@pytest.mark.parametrize("late_us", [0, 9_000])
def test_where_no_core_is_idle_most_may_be_waiting_for_one_another(
    training: Callable[..., Measures], late_us: int
) -> None:
    """Each rank in turn comes later, to an operation that takes 5 ms once both are there."""
    run = training(
        lambda rank, step: 10_000 + late_us * 3 * (step % 2 == rank),
        transfer_us=lambda rank, step: 5_000,
    )
    machine = {"cores": 2, "usable_cores": 2, "seconds": 1.0, "busy_s": 2.0, "own_s": 0.5}
    rows = [{"rank": rank, "machine": machine} for rank in range(2)]
    run = replace(run, manifest={"ranks": rows})
    (its,) = diagnose(run, select=["exposed-communication"]).findings
    assert ("and more than half of it waiting for one another" in its.summary) == bool(late_us)
    assert its.advice.startswith("give each rank more cores") == bool(late_us)


def test_a_call_that_takes_long_itself_is_still_waited_for_at_once() -> None:
    """Its thread lost the core within it; nothing ran between its end and the wait."""
    waits = early_waits(trained(late_us=700))
    assert waits.early.all()
    assert set((waits.blocked_ns // 1_000).tolist()) == {290}
