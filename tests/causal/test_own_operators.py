"""What a late rank runs before a call that the others do not run there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commtrace.causal.blame.culprits import culprits
from commtrace.causal.work.own_operators import own_operators
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

MS = 1_000_000


def ranks_of(work: Callable[[Tiny, int, int, float], float], steps: int = 8) -> Measures:
    """Two ranks on CPUs; ``work`` runs a rank's operators of a step and tells when it is done."""
    run, begin = Tiny(2, backend="gloo"), 0.0
    for step in range(steps):
        done = [work(run, rank, step, begin) for rank in (0, 1)]
        end = max(done) + 2_000
        for rank, called in enumerate(done):
            run.step(rank, step, begin, end - begin)
            run.gap(rank, called, end - called)
            run.collective(
                rank,
                "all_reduce",
                called,
                end - called,
                size=4_000,
                launch_ns=BASE_NS + round(1000 * called),
                thread=1,
                asynchronous=0,
            )
        begin = end
    return run.trace()


def several(run: Tiny, rank: int, begin: float, count: int, each: float, apart: float) -> float:
    for number in range(count):
        run.op(rank, begin + number * (each + apart), each, name="aten::lerp_")
    return begin + count * (each + apart)


def average_on_zero(apart_us: float) -> Measures:
    """Both compute for 10 ms; rank 0 then averages its parameters, one by one."""

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        run.op(rank, begin + 10, 9_990, name="aten::mm")
        done = begin + 10_000
        return several(run, rank, done, 100, 50, apart_us) if rank == 0 else done

    return ranks_of(work)


def late(run: Measures) -> Finding:
    (finding,) = diagnose(run, select=["straggler"]).findings
    assert finding.ranks == (0,)
    return finding


def test_operators_that_only_one_rank_runs_are_counted_and_named() -> None:
    run = average_on_zero(apart_us=5)
    (culprit,) = culprits(run, 0.05).found
    more = own_operators(run, culprit.ranks, culprit.call)
    assert more is not None
    assert (more.count, more.names) == (100, ("aten::lerp_",))
    assert more.time_ns == pytest.approx(5 * MS)
    finding = late(run)
    assert "computing" in finding.summary
    assert "runs there 100 operators more than the others" in finding.advice
    assert "(aten::lerp_: 5 ms)" in finding.advice


def test_python_between_them_is_no_time_without_operators() -> None:
    finding = late(average_on_zero(apart_us=100))
    assert "in Python, between operators that only it runs" in finding.summary
    assert finding.cause == "host"
    assert "runs there 100 operators more" in finding.advice


def test_a_rank_that_compiles_anew_is_told_so() -> None:
    """Its regions bear other numbers than those of the others: they are no work of its own."""

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        number = step if rank == 0 else 0
        compiling = 30_000 if rank == 0 else 0
        if compiling:
            run.op(rank, begin + 10, compiling, name="dynamo")
        done = begin + 10 + compiling
        run.op(rank, done, 9_990, name=f"Torch-Compiled Region: 0/{number}")
        return done + 9_990

    run = ranks_of(work)
    (culprit,) = culprits(run, 0.05).found
    more = own_operators(run, culprit.ranks, culprit.call)
    assert more is not None
    assert (more.count, more.names) == (1, ("dynamo",))
    advice = late(run).advice
    assert "torch.compile compiles anew there (30 ms a step in the mean)" in advice
    assert "dynamic=True" in advice
    assert "dynamo" not in advice


def test_the_same_operators_that_take_longer_are_no_others() -> None:
    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        return several(run, rank, begin + 10, 100, 250 if rank == 0 else 100, 5)

    finding = late(ranks_of(work))
    assert "computing" in finding.summary
    assert "operators more" not in finding.advice


def test_in_few_steps_only_these_count() -> None:
    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        run.op(rank, begin + 10, 9_990, name="aten::mm")
        done = begin + 10_000
        validates = rank == 0 and step in (2, 6)
        return several(run, rank, done, 50, 390, 10) if validates else done

    finding = late(ranks_of(work))
    assert "in 2 of 8 steps" in finding.summary
    assert "runs there 50 operators more" in finding.advice


@pytest.mark.parametrize("own", [True, False])
def test_what_the_other_computes_longer_by_turns_hides_no_operators_of_ones_own(own: bool) -> None:
    """Rank 1 takes a third longer for the same, as on a core that is shared, and once far longer.

    Rank 0 validates in three steps for 8 ms; or computes so much longer there, as by turns.
    """

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        usual = 14_000 + 5_000 * (step == 3) if rank else 10_000
        validates = 8_000 * (rank == 0 and step in (1, 4, 7))
        run.op(rank, begin + 10, usual + validates * (not own), name="aten::mm")
        done = begin + 10 + usual + validates * (not own)
        return several(run, rank, done, 20, 390, 10) if validates and own else done

    found = culprits(ranks_of(work), 0.05).found
    assert [(its.ranks, its.spikes) for its in found] == [((0,), (1, 4, 7))] * own


@pytest.mark.parametrize("own", [True, False])
def test_a_short_stall_is_one_if_only_one_rank_runs_what_fills_it(own: bool) -> None:
    """7 ms in one of three steps: 140 operators, or the same one for longer, as noise may be."""

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        stalls, done = (rank, step) == (0, 1), begin + 10_000
        run.op(rank, begin + 10, 9_990 + 7_000 * (stalls and not own), name="aten::mm")
        if stalls and own:
            return several(run, rank, done, 140, 45, 5)
        return done + 7_000 * stalls

    found = culprits(ranks_of(work, steps=3), 0.05).found
    assert [(its.ranks, its.spikes) for its in found] == [((0,), (1,))] * own


def test_on_gpus_they_are_kernels() -> None:
    run = Tiny(2)
    for step in range(8):
        at = 40_000 * step
        for rank in (0, 1):
            run.step(rank, step, at, 40_000)
            launch = BASE_NS + 1000 * at
            run.kernel(rank, at, 10_000, name="gemm", launch_ns=launch)
            for number in range(20 if rank else 0):
                begin = at + 10_000 + 500 * number
                run.kernel(rank, begin, 500, name="lerp", launch_ns=launch)
            start = 20_000 if rank else 10_000
            run.collective(
                rank, "all_reduce", at + start, 22_000 - start, size=1 << 20, launch_ns=launch
            )
    trace = run.trace()
    (culprit, *_) = culprits(trace, 0.05).found
    more = own_operators(trace, culprit.ranks, culprit.call)
    assert more is not None
    assert (more.kind, more.count, more.names) == ("kernels", 20, ("lerp",))
    assert "runs there 20 kernels more" in diagnose(trace, select=["straggler"]).findings[0].advice


def test_who_sleeps_runs_nothing_more(training: Callable[..., Measures]) -> None:
    run = training(lambda rank, step: 10_000, sleep_us=lambda rank, step: 8_000 * (rank == 1))
    (culprit,) = culprits(run, 0.05).found
    assert own_operators(run, culprit.ranks, culprit.call) is None
    assert culprit.more is None


@pytest.mark.parametrize("more", [True, False])
def test_more_operators_are_no_fight_for_cores(more: bool) -> None:
    """A fifth more work: of more operators it is surely its own."""

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        most = rank == 0
        return several(
            run, rank, begin, *((24, 500) if more and most else (20, 600 if most else 500)), 5
        )

    finding = late(ranks_of(work))
    assert finding.confidence == ("high" if more else "low")
    assert ("share cores" in finding.summary) == (not more)


def test_what_comes_before_a_call_or_behind_it_by_chance_is_no_more() -> None:
    """Both run the same in a step; rank 0 runs one operator before the call, rank 1 behind it."""

    def work(run: Tiny, rank: int, step: int, begin: float) -> float:
        run.op(rank, begin + 10, 9_990, name="aten::mm")
        run.op(rank, begin + 10_000 if rank == 0 else begin + 15_500, 5_000, name="aten::addmm")
        return begin + (15_000 if rank == 0 else 10_000)

    run = ranks_of(work)
    found = culprits(run, 0.05).found
    assert [(culprit.ranks, culprit.more) for culprit in found] == [((0,), None)]
