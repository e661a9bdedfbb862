"""What a program pays once, as it starts, beside what it pays again and again."""

from __future__ import annotations

from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def solver(cold_us: int, times: int) -> Tiny:
    """No steps: rank 1 computes 2 ms longer before each all_reduce, and the first is cold."""
    run = Tiny(ranks=2)
    for i in range(times):
        start = 8_000 * i + (cold_us if i else 0)
        for rank in range(2):
            time = 1_000 + 2_000 * rank
            run.kernel(rank, start + 10, time)
            arrival, end = start + 20 + time, start + 7_900 + (0 if i else cold_us)
            run.collective(rank, "all_reduce", arrival, end - arrival, size=1 << 26, seq=i)
    return run


def test_a_cold_start_stands_behind_who_is_late_again_and_again() -> None:
    """It costs more, but only once, however long the program runs."""
    run = solver(100_000, times=40)
    late, cold = diagnose(run.trace(), select=["cold-start", "straggler"]).findings
    assert (late.rule, late.ranks, cold.rule) == ("straggler", (1,), "cold-start")
    assert cold.cost_ns > late.cost_ns


def test_a_cold_start_stands_before_what_costs_little() -> None:
    findings = diagnose(solver(2_000_000, times=40).trace()).findings
    assert findings[0].rule == "cold-start"


def stalling(*, steps: bool) -> Tiny:
    """A host connects for 50 ms as it first communicates, and then no more, 60 times."""
    run = Tiny(ranks=2)
    for rank in range(2):
        run.kernel(rank, 6, 10, launch_ns=at(0))
        run.op(rank, 100, 49_800, name="c10d::allreduce_", kind="communication")
        for i in range(60):
            start = 50_000 + 1_000 * i
            run.kernel(rank, start + 6, 890, launch_ns=at(start))
            run.collective(
                rank, "all_reduce", start + 900, 100, size=1 << 20, launch_ns=at(start + 5)
            )
            if steps:
                run.step(rank, i, start if i else 0, 1_000 if i else 51_000)
    return run


def test_how_a_run_without_steps_starts_is_no_stall() -> None:
    assert not diagnose(stalling(steps=False).trace(), select=["launch-gap"]).findings
    assert diagnose(stalling(steps=True).trace(), select=["launch-gap"]).findings


def test_what_a_run_stalls_before_it_communicates_at_its_end_is_no_start() -> None:
    run = Tiny(ranks=2)
    for rank in range(2):
        for i in range(60):
            run.kernel(rank, 50_000 * i + 6, 1_000, launch_ns=at(50_000 * i))
        for i in range(40):
            start = 3_000_000 + 200 * i
            run.collective(rank, "all_reduce", start + 6, 190, size=1 << 20, launch_ns=at(start))
    (finding,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert finding.summary.startswith("rank 0's host stalls 60 times")
