"""Waiting for a core is no work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.on_core import on_core
from commtrace.causal.work.segments import own_work
from commtrace.measures import Measures
from commtrace.rules import diagnose

Training = Callable[..., Measures]
STEPS = 6


def on_cores(
    run: Measures, waited_us: Callable[[int, int], int], ran_us: int, *more_us: int
) -> Measures:
    """As if ranks had waited so long for a core in each step, and run so long, or so much more."""
    rows = [
        {
            "rank": rank,
            "machine": {"steps": [[n, ran, waited_us(rank, n), ran] for n in range(STEPS)]},
        }
        for rank, ran in enumerate((*(ran_us + more for more in more_us), *(ran_us,) * 8))
    ]
    return replace(run, manifest={**(run.manifest or {}), "ranks": rows})


def test_who_did_not_get_a_core_is_not_slow(training: Training) -> None:
    """Rank 1 is 8 ms later in every step, and waited 8 ms for a core in each."""
    run = training(lambda rank, step: 10_000 + 8_000 * (rank == 1), ranks=3)
    (blamed,) = diagnose(run, select=["straggler"]).findings
    assert blamed.ranks == (1,)
    fought = on_cores(run, lambda rank, step: 8_000 * (rank == 1), ran_us=10_000)
    assert not diagnose(fought, select=["straggler"]).findings


def test_who_works_longer_on_its_core_is(training: Training) -> None:
    """A third more work than the others', which processes that share cores may seem to have."""
    run = training(lambda rank, step: 20_000 + 6_600 * (rank == 1), ranks=3, cores=2)
    (its,) = diagnose(run, select=["straggler"]).findings
    assert its.confidence == "low"
    alone = on_cores(run, lambda rank, step: 0, ran_us=20_000)
    (its,) = diagnose(alone, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), "high")


def test_who_waited_long_shares_its_core_and_its_caches(training: Training) -> None:
    """A quarter more work, of a rank that waited for a core for as long as it ran."""
    run = training(lambda rank, step: 20_000 + 30_000 * (rank == 1), ranks=3, cores=2)
    shared = on_cores(run, lambda rank, step: 25_000 * (rank == 1), ran_us=25_000)
    (its,) = diagnose(shared, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), "low")


def test_who_computes_less_waits_less_for_a_core(training: Training) -> None:
    """Rank 1 works twice as long, and each waited as long as it ran."""
    run = training(lambda rank, step: 10_000 + 10_000 * (rank == 1), ranks=3, cores=2)
    shared = on_cores(run, lambda rank, step: 5_000 * (1 + (rank == 1)), 5_000, 0, 5_000)
    (its,) = diagnose(shared, select=["straggler"]).findings
    assert its.ranks == (1,)
    assert its.cost_ns == pytest.approx(STEPS * 10_000_000, rel=0.05)


def test_sleeping_is_no_waiting_for_a_core(training: Training) -> None:
    """A thread that ran 4 of 10 ms, and waited 1 ms for a core, slept for the rest."""
    run = training(lambda rank, step: 4_000, sleep_us=lambda rank, step: 6_000)
    on = on_core(on_cores(run, lambda rank, step: 1_000, ran_us=3_000))
    assert on is not None
    assert on.operators.min() == pytest.approx(0.75, abs=0.02)
    assert on.idle.min() == pytest.approx(1, abs=0.02)


def test_who_pauses_as_long_in_every_step_is_late_though_another_is_later_in_one(
    training: Training,
) -> None:
    """Rank 1 sleeps in each of three steps of four ranks; in one of these rank 2 sleeps longer."""

    def sleeping(*mine_us: float) -> Measures:
        others_us = {(2, 1): 9_000.0}
        return training(
            lambda rank, step: 20_000,
            sleep_us=lambda rank, step: (
                mine_us[step] if rank == 1 else others_us.get((rank, step), 0)
            ),
            steps=3,
            ranks=4,
        )

    steady = sleeping(8_000, 8_000, 8_000)
    assert not diagnose(steady, select=["straggler"]).findings  # it may have waited for a core
    pauses = on_cores(steady, lambda rank, step: 0, ran_us=20_000)
    (its,) = diagnose(pauses, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), "low")
    assert its.cost_ns == pytest.approx(16_000_000, rel=0.1)
    assert "pauses for about as long in every step, but not every step waits" in its.summary
    unsteady = on_cores(sleeping(12_000, 3_000, 8_000), lambda rank, step: 0, ran_us=20_000)
    assert not diagnose(unsteady, select=["straggler"]).findings


def test_own_work_and_waiting_are_the_time_by_the_clock(training: Training) -> None:
    run = on_cores(training(lambda rank, step: 4_000), lambda rank, step: 1_000, ran_us=3_000)
    work, its = own_work(run), run_graph(run)
    assert work.waited_ns is not None
    measured = its.graph.lag_ns[its.own].sum()
    assert (work.own_ns + work.waited_ns).sum() == pytest.approx(measured, rel=1e-6)
    assert work.waited_ns.sum() == pytest.approx(2 * STEPS * 1e6, rel=0.02)


@pytest.mark.parametrize(
    "steps", [None, 3, [1], [[1, 2]], [["a", "b", "c", "d"]], [[1, None, 2, 3]]]
)
def test_what_no_recorder_writes_is_left_alone(steps: Any, training: Training) -> None:
    run = training(lambda rank, step: 4_000)
    rows = [{"rank": rank, "machine": {"steps": steps}} for rank in range(2)]
    assert on_core(replace(run, manifest={"ranks": rows})) is None


@pytest.mark.parametrize(("awake", "confidence"), [(True, "low"), (False, "high")])
def test_who_runs_longer_outside_of_torch_may_fight_for_its_core_and_who_sleeps_not(
    training: Training, awake: bool, confidence: str
) -> None:
    """Rank 1 is without operators for 4 ms longer, a seventh of what it does."""
    run = training(
        lambda rank, step: 20_000,
        ranks=3,
        cores=2,
        sleep_us=lambda rank, step: 8_000 + 4_000 * (rank == 1),
    )
    more = (0, 4_000) if awake else (0, 0)
    on = on_cores(run, lambda rank, step: 0, 28_000 if awake else 20_000, *more)
    (its,) = diagnose(on, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), confidence)


@pytest.mark.parametrize(("steps", "confidence"), [(3, "low"), (STEPS, "high")])
def test_a_third_more_compute_in_few_steps_may_be_what_cores_share(
    training: Training, steps: int, confidence: str
) -> None:
    run = training(lambda rank, step: 12_000 + 4_000 * (rank == 1), ranks=3, steps=steps)
    on = on_cores(run, lambda rank, step: 0, 16_000)
    (its,) = diagnose(on, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), confidence)


@pytest.mark.parametrize(
    ("stalls", "sleeps", "busy_s", "confidence"),
    [
        ({3}, True, 1.9, "low"),
        ({3}, True, 0.9, "high"),
        ({1, 3}, True, 1.9, "high"),
        ({1, 3}, False, 1.9, "low"),
        ({1, 3}, False, 0.9, "high"),
    ],
)
def test_a_stall_once_and_computing_longer_now_and_then_may_be_others_doing(
    training: Training, stalls: set[int], sleeps: bool, busy_s: float, confidence: str
) -> None:
    """Two ranks of 0.4 s each, on two cores; all processes of the machine ran ``busy_s``."""

    def more(rank: int, step: int) -> int:
        return 30_000 * (rank == 1 and step in stalls)

    run = training(
        lambda rank, step: 10_000 + more(rank, step) * (not sleeps),
        ranks=2,
        sleep_us=lambda rank, step: more(rank, step) * sleeps,
    )
    known = on_cores(run, lambda rank, step: 0, ran_us=10_000)
    load = {"cores": 2, "usable_cores": 2, "seconds": 1.0, "own_s": 0.4, "busy_s": busy_s}
    rows = [{**row, "machine": row["machine"] | load} for row in known.manifest["ranks"]]
    shared = replace(known, manifest={**known.manifest, "ranks": rows})
    (its,) = diagnose(shared, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), confidence)
