"""Cores that take longer for the same: a fixed piece of work tells it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commtrace.causal.work.core_speed import slower_core
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS

STEPS = 24


def looked_at(
    run: Measures, took_ns: tuple[float, float], looks: int = STEPS, more: float = 1
) -> Measures:
    """With so long for the fixed work on each of two ranks, every 30 ms.

    The second one's thread ran for so many times 16 ms, and both for 4 ms.
    """
    rows = [
        {
            "rank": rank,
            "machine": {
                "steps": [[step, *_ran_us(more if rank else 1)] for step in range(STEPS)],
                "core_speed": [[BASE_NS + 30_000_000 * i, round(its)] for i in range(looks)],
            },
        }
        for rank, its in enumerate(took_ns)
    ]
    return replace(run, manifest={"ranks": rows})


def _ran_us(more: float) -> tuple[int, int, int]:
    ran = round(4_000 + 16_000 * more)
    return ran, 0, ran


@pytest.mark.parametrize(
    ("times", "core", "confidence"),
    [
        (1.6, 1.0, "high"),
        (1.6, 1.5, "low"),  # its core is as slow
        (1.6, 0.7, "high"),  # the other's is
        (2.6, 1.5, "high"),  # it does more, too
    ],
)
def test_who_works_longer_on_a_slow_core_may_have_no_more_to_do(
    times: float, core: float, confidence: str, training: Callable[..., Measures]
) -> None:
    run = training(
        lambda rank, step: 4_000,
        sleep_us=lambda rank, step: 16_000 * (times if rank else 1),
        steps=STEPS,
    )
    run = looked_at(run, (40_000, 40_000 * core), more=times)
    assert slower_core(run, [1]) == pytest.approx(core)
    assert slower_core(run, [0]) == pytest.approx(1 / core)
    (its,) = diagnose(run, select=["straggler"]).findings
    assert its.ranks == (1,)
    assert its.confidence == confidence
    assert (f"a fixed piece of it {core:.2f} times" in its.summary) == (confidence == "low")


@pytest.mark.parametrize(("looks", "confidence"), [(0, "low"), (STEPS, "high")])
def test_of_a_core_that_is_as_fast_less_is_chance(
    looks: int, confidence: str, training: Callable[..., Measures]
) -> None:
    """A third more to do, which half of a shared core could explain."""
    run = training(
        lambda rank, step: 4_000,
        sleep_us=lambda rank, step: 16_000 * (1.35 if rank else 1),
        steps=STEPS,
    )
    run = looked_at(run, (40_000, 40_000), looks, more=1.35)
    (its,) = diagnose(run, select=["straggler"]).findings
    assert its.confidence == confidence


@pytest.mark.parametrize(
    ("looks", "hosts"),
    [(2, ("a",)), (STEPS, ("a", "b"))],  # too few; a host that is slow is so by itself
)
def test_what_tells_nothing_of_a_core(
    looks: int, hosts: tuple[str, ...], training: Callable[..., Measures]
) -> None:
    run = training(lambda rank, step: 4_000, steps=STEPS, hosts=hosts)
    assert slower_core(looked_at(run, (40_000, 80_000), looks), [1]) is None


def test_a_rank_of_the_manifest_alone_tells_nothing(training: Callable[..., Measures]) -> None:
    """Its trace was not given, and no clock of its is known."""
    run = training(
        lambda rank, step: 4_000, sleep_us=lambda rank, step: 16_000 * (1 + rank), steps=STEPS
    )
    run = looked_at(run, (40_000, 40_000), more=2)
    assert run.manifest is not None
    rows = run.manifest["ranks"]
    every = replace(run, manifest={"ranks": [*rows, *({**rows[1], "rank": n} for n in (-1, 7))]})
    assert slower_core(every, [1]) == slower_core(run, [1]) == pytest.approx(1)
    assert not diagnose(every).notes
    (its,) = diagnose(every, select=["straggler"]).findings
    assert its.ranks == (1,)


def test_looks_need_no_order(training: Callable[..., Measures]) -> None:
    run = looked_at(training(lambda rank, step: 4_000, steps=STEPS), (40_000, 60_000))
    assert run.manifest is not None
    for row in run.manifest["ranks"]:
        row["machine"]["core_speed"].reverse()
    assert slower_core(run, [1]) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "said", [None, 3, [1], [[1, 2, 3]], [["a", 1]], [[2**70, 4]] * 3, [[4, 0]] * 3, [[4, -5]] * 3]
)
def test_what_cannot_be_a_look_is_none(said: Any, training: Callable[..., Measures]) -> None:
    run = training(lambda rank, step: 4_000, steps=STEPS)
    rows = [{"rank": rank, "machine": {"core_speed": said}} for rank in range(2)]
    assert slower_core(replace(run, manifest={"ranks": rows}), [1]) is None
