"""Ranks that all wait for their data: what they wait longer than the others is a straggler's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
STEPS = 6


def _loading(loads_us: Sequence[Sequence[float]], label: str = WORKERS) -> Measures:
    """Steps in which each rank loads so long (ranks × steps), and computes 5 ms."""
    run = Tiny(len(loads_us), backend="gloo")
    start = 0.0
    for step in range(STEPS):
        end = start + max(each[step] for each in loads_us) + 5500
        for rank, each in enumerate(loads_us):
            loads = each[step]
            run.step(rank, step, start, end - start)
            run.step(rank, step, start, loads, label=label)
            run.op(rank, start + loads, 5000)
            call = start + loads + 5000
            run.gap(rank, call, end - call)
            same = {"thread": 1, "step": step, "asynchronous": 0}
            run.collective(rank, "all_reduce", call, end - call, size=1 << 20, **same)
        start = end
    return run.trace()


def test_what_few_load_is_theirs() -> None:
    run = _loading([[4000] * STEPS, [0] * STEPS, [0] * STEPS])
    said = diagnose(run, select=["input-bound"]).skipped["input-bound"]
    assert said == "needs a DataLoader's label in most ranks' traces: few load"


def test_what_all_load_is_saved() -> None:
    (found,) = diagnose(_loading([[4000] * STEPS] * 2), select=["input-bound"]).findings
    assert (found.ranks, found.cause) == ((0, 1), "loader")
    assert found.cost_ns == pytest.approx(STEPS * 4e6, rel=0.01)
    assert found.summary == "all ranks wait for data for 4 ms of each step"
    assert "num_workers" in found.advice


def test_one_that_loads_longer_is_a_straggler_alone() -> None:
    run = _loading([[50] * STEPS, [4000] * STEPS])
    names = [one.rule for one in diagnose(run).findings if one.explained_by is None]
    assert names == ["straggler"]


def test_most_that_load_longer_are_stragglers_too() -> None:
    run = _loading([[50] * STEPS, [4000] * STEPS, [4000] * STEPS])
    found = [one for one in diagnose(run).findings if one.explained_by is None]
    assert [(one.rule, one.ranks) for one in found] == [("straggler", (1, 2))]


def test_what_one_loads_beyond_the_others_is_not_counted() -> None:
    run = _loading([[4000] * STEPS, [9000] * STEPS])
    found = {one.rule: one for one in diagnose(run).findings}
    assert found["straggler"].ranks == (1,)
    assert found["straggler"].cost_ns == pytest.approx(STEPS * 5e6, rel=0.02)
    assert found["input-bound"].cost_on_top_ns == pytest.approx(STEPS * 4e6, rel=0.02)


def test_whose_loader_is_the_slowest_in_turn_does_not_matter() -> None:
    run = _loading([[4000, 5000, 4000] * 2, [4000, 4000, 5000] * 2, [5000, 4000, 4000] * 2])
    (found,) = diagnose(run, select=["input-bound"]).findings
    assert found.cost_ns == pytest.approx(STEPS * 5e6, rel=0.02)


def test_workers_that_start_anew_are_kept() -> None:
    loads = [100.0, 100, 20_000, 100, 100, 100]
    (found,) = diagnose(_loading([loads] * 2), select=["input-bound"]).findings
    assert found.summary == "all ranks wait for data in 1 of 6 steps, 20 ms in each"
    assert "persistent_workers" in found.advice
    assert found.confidence == "medium"


def test_a_loader_without_workers_gets_some() -> None:
    run = _loading([[4000] * STEPS] * 2, SINGLE)
    (found,) = diagnose(run, select=["input-bound"]).findings
    assert "in other processes" in found.advice


def test_without_a_label_it_cannot_look() -> None:
    run = _loading([[4000] * STEPS] * 2, label="mine")
    assert "DataLoader" in diagnose(run, select=["input-bound"]).skipped["input-bound"]


def test_a_run_without_steps_loads_in_its_tenths() -> None:
    run = Tiny(2, backend="gloo")
    for number in range(20):
        for rank in (0, 1):
            start = number * 10_000.0
            run.step(rank, number, start, 4000, label=WORKERS)
            run.op(rank, start + 4000, 5000)
            same = {"thread": 1, "asynchronous": 0, "size": 1 << 20}
            run.gap(rank, start + 9000, 1000)
            run.collective(rank, "all_reduce", start + 9000, 1000, **same)
    (found,) = diagnose(run.trace(), select=["input-bound"]).findings
    # What was loaded before the first call is in none: 19 times 4 ms.
    assert found.summary == "all ranks wait for data for 7.6 ms of each tenth of the run"


@pytest.mark.parametrize("blocks", [False, True])
def test_what_loads_before_the_first_recorded_kernel_is_no_more_than_gpus_are_idle(
    blocks: bool,
) -> None:
    """A host's lead from before the recording hides it."""
    run = Tiny(2)
    label = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    for step in range(4):
        start = 10_000 * step
        for rank in (0, 1):
            run.step(rank, step, start, 10_000)
            run.step(rank, step, start + 10, 9_000, label=label)
            run.kernel(rank, start + 9_100, 8_500)
            run.collective(rank, "all_reduce", start + 17_700, 1_200, size=1 << 20)
            if blocks:
                run.blocking_call(rank, "cudaEventSynchronize", start + 9_200, 1)
    (finding,) = diagnose(run.trace(), select=["input-bound"]).findings
    assert finding.cost_ns <= 4e3 * (1_200 + 300)
