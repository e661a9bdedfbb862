"""Ranks that are late at places of their own, and a rank that is late at several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.run.calls import calls
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny
from tests.gloo_loop import gloo_loop

MS = 1_000_000
SHARE = 0.05
STEPS = 8
WORK_US = 10_000.0


def training(*late_us: Sequence[float]) -> Measures:
    """In each step a broadcast by rank 0, then an all_reduce; how late each rank is to each."""

    def work(late: Sequence[float]) -> Callable[[int, int], float]:
        return lambda rank, step: WORK_US + 7 * (rank + step) % 50 + late[rank]

    operations = [
        (op, work(late)) for op, late in zip(("broadcast", "all_reduce"), late_us, strict=True)
    ]
    return gloo_loop(*operations, ranks=len(late_us[0]), steps=STEPS, size=1 << 20)


def found(run: Measures) -> list[tuple[tuple[int, ...], str]]:
    return [(its.ranks, its.waits.mostly) for its in culprits(run, SHARE).found]


def saved_ms(its: Culprit) -> float:
    return its.on_top_ns / STEPS / MS


def test_of_two_ranks_each_is_late_at_a_place_of_its_own() -> None:
    run = training((8_000, 0), (0, 5_000))
    first, second = culprits(run, SHARE).found
    assert (first.ranks, first.waits.mostly) == ((0,), "root")
    assert (second.ranks, second.waits.mostly) == ((1,), "collective")
    assert saved_ms(first) == pytest.approx(8, rel=0.02)
    assert saved_ms(second) == pytest.approx(5, rel=0.02)
    assert diagnose(run).findings[0].rule == "late-root"


def test_of_two_ranks_one_is_late() -> None:
    assert found(training((0, 0), (0, 5_000))) == [((1,), "collective")]
    assert found(training((0, 0), (0, 0))) == []


def test_a_rank_that_is_late_as_root_and_in_operations_of_all_is_so_twice() -> None:
    run = training((6_000, 0, 0), (4_000, 0, 0))
    as_root, of_all = culprits(run, SHARE).found
    assert (as_root.ranks, as_root.waits.mostly) == ((0,), "root")
    assert (of_all.ranks, of_all.waits.mostly) == ((0,), "collective")
    assert saved_ms(as_root) == pytest.approx(6, rel=0.02)
    assert saved_ms(of_all) == pytest.approx(4, rel=0.02)
    assert as_root.replayed_step_ns - of_all.replayed_step_ns == pytest.approx(-2 * MS, rel=0.05)
    named = {its.rule: its.place for its in diagnose(run).findings if its.ranks == (0,)}
    assert named["late-root"] == "before the broadcast"
    assert named["straggler"] == "before the all_reduce"


def test_what_is_a_small_part_of_it_is_no_finding_of_its_own() -> None:
    assert found(training((9_000, 0, 0), (800, 0, 0))) == [((0,), "root")]


def test_of_three_ranks_two_are_late() -> None:
    run = training((0, 0, 0), (0, 5_000, 5_000))
    (both,) = culprits(run, SHARE).found
    assert both.ranks == (1, 2)
    assert saved_ms(both) == pytest.approx(5, rel=0.02)
    said = diagnose(run).findings[0]
    assert (said.rule, said.ranks) == ("straggler", (1, 2))


def test_of_three_ranks_two_that_are_late_by_turns_are_not_so_together() -> None:
    def work(rank: int, step: int) -> float:
        return WORK_US + 5_000 * (rank == 1 + step % 2)

    run = gloo_loop(("all_reduce", work), ranks=3, steps=STEPS, size=1 << 20)
    assert found(run) == []


def test_a_rank_that_receives_late_keeps_the_root_that_has_much_to_send() -> None:
    (late,) = culprits(training((0, 5_000), (0, 0)), SHARE).found
    assert (late.ranks, late.waits.mostly) == ((1,), "collective")
    assert saved_ms(late) == pytest.approx(5, rel=0.02)


@pytest.mark.parametrize(("sends_us", "waits_us"), [(40, 0), (900, 700)])
def test_a_root_that_is_done_before_others_arrive_has_not_waited(
    sends_us: float, waits_us: float
) -> None:
    run = Tiny(2, backend="gloo")
    for at in (0, 2_000):
        run.collective(0, "broadcast", at, sends_us, size=4096, root=0, thread=1)
        run.collective(1, "broadcast", at + 700, 200, size=4096, root=0, thread=1)
    its = calls(run.trace())
    waited_ns = (its.last_ns - its.start_ns)[its.rank == 0]
    assert waited_ns.tolist() == [waits_us * 1_000] * 2


@pytest.mark.parametrize(("backend", "waits_us"), [("nccl", 700), ("gloo", 0)])
@pytest.mark.parametrize("root_us", [900, 40])
def test_what_gpus_receive_they_pass_on(backend: str, waits_us: float, root_us: float) -> None:
    """The second of three is kept by the third, too, if the root is."""
    run = Tiny(3, backend=backend)
    for rank, at, took in ((0, 0, root_us), (1, 0, 900), (2, 700, 200)):
        run.collective(rank, "broadcast", at, took, size=1 << 26, root=0, thread=1)
    its = calls(run.trace())
    waited_ns = (its.last_ns - its.start_ns)[its.rank == 1]
    assert waited_ns.tolist() == [waits_us * 1_000 * (root_us > 700)]


@pytest.mark.parametrize(("backend", "waits_us"), [("nccl", 700), ("gloo", 0)])
def test_gpus_behind_a_late_one_wait_for_it_though_the_root_is_done(
    backend: str, waits_us: float
) -> None:
    """Rank 1 has passed on what fits into buffers; rank 3 gets it when rank 2 has come.

    Rank 4 came right before that, and rank 5 when all others had it.
    """
    run = Tiny(6, backend=backend)
    ranks = ((0, 0, 40), (1, 0, 45), (2, 700, 15), (3, 0, 720), (4, 690, 35), (5, 2_000, 10))
    for rank, at, took in ranks:
        run.collective(rank, "broadcast", at, took, size=4096, root=0, thread=1)
    its = calls(run.trace())
    waited_ns = (its.last_ns - its.start_ns)[np.argsort(its.rank)]
    assert waited_ns.tolist() == [0, 0, 0, 1_000 * waits_us, 0, 0]
