"""Who is late by turns, though one stalls once; and who is not."""

from __future__ import annotations

import pytest

from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny


def steps(late: list[int], tail_us: int = 0) -> Measures:
    """In each step one of four ranks is 3 ms late; behind all rank 0 comes late to a barrier."""
    run = Tiny(ranks=4)
    for step, slow in enumerate(late):
        start = step * 10_000
        for rank in range(4):
            arrival = 5000 if rank == slow else 2000
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start, arrival - 10)
            run.collective(rank, "all_reduce", start + arrival, 9900 - arrival, size=1 << 26)
    end = len(late) * 10_000 + 100
    for rank in range(4):
        at = end + (tail_us if rank == 0 else 0)
        run.collective(rank, "barrier", at, end + tail_us + 100 - at)
    return run.trace()


@pytest.mark.parametrize("tail_us", [0, 600_000])
def test_one_long_wait_behind_all_steps_does_not_outvote_them(tail_us: int) -> None:
    run = steps([step % 4 for step in range(60)], tail_us)
    assert "jitter" in [one.rule for one in diagnose(run).findings]


def always_the_same_two() -> Measures:
    """Rank 1 is late to a step's first all_reduce, rank 2 to its second: by 4.5 % of it each."""
    run = Tiny(ranks=4)
    for step in range(12):
        for rank in range(4):
            run.step(rank, step, step * 10_000, 10_000)
            for start, slow in ((step * 10_000, 1), (step * 10_000 + 5000, 2)):
                arrival = 2450 if rank == slow else 2000
                run.kernel(rank, start, arrival - 10)
                run.collective(rank, "all_reduce", start + arrival, 4900 - arrival, size=1 << 26)
    return run.trace()


def test_those_that_are_late_in_every_step_take_no_turns_though_each_costs_little() -> None:
    told = [one.rule for one in diagnose(always_the_same_two()).findings]
    assert not {"jitter", "straggler"} & {*told}


def generating(more: int) -> Measures:
    """In each step the host of another of four ranks launches ``more`` times as many kernels."""
    run, start = Tiny(ranks=4), 0
    for step in range(8):
        done = start + 100 * 40 * more
        for rank in range(4):
            count = 40 * (more if rank == step % 4 else 1)
            for at in range(start, start + 100 * count, 100):
                run.kernel(rank, at, 30, launch_ns=BASE_NS + 1000 * (at - 5))
            launched = {"launch_ns": BASE_NS + 1000 * (start + 100 * count - 5)}
            begin = start + 100 * count
            run.collective(rank, "all_reduce", begin, done + 500 - begin, size=1 << 20, **launched)
            run.step(rank, step, start - 10, done + 500 - start)
        start = done + 510
    return run.trace()


def test_who_is_late_by_turns_since_it_computes_more_is_told_so() -> None:
    (finding,) = [one for one in diagnose(generating(2)).findings if one.rule == "jitter"]
    assert finding.advice.startswith("who is late computes more: 80 kernels, where 40 are usual")
    assert "jitter" not in [one.rule for one in diagnose(generating(1)).findings]
