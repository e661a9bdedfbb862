"""Runs that communicate for longer than they compute, and overlap what there is."""

from __future__ import annotations

from itertools import product

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

UNITS = 4


def found(
    gathers: int = 2, hosts: tuple[str, ...] = ("a", "b"), computes: int = 1_900, after: int = 0
) -> tuple[Finding, ...]:
    """FSDP on four ranks: gathers and reductions of 2 ms, back to back, and compute beside them.

    Or all of it ``after`` so long.
    """
    run = Tiny(4, hosts=hosts)
    ops = ["all_gather"] * gathers * UNITS + ["reduce_scatter"] * UNITS
    length = 2_000 * len(ops) + after
    for step, rank in product(range(4), range(4)):
        begin = step * length
        launched = {"launch_ns": BASE_NS + 1000 * begin}
        run.step(rank, step, begin, length)
        for number, op in enumerate(ops):
            at = begin + 2_000 * number
            run.collective(rank, op, at, 1_990, size=1 << 26, dtype="bfloat16", **launched)
            if number < gathers * UNITS:
                run.kernel(rank, at + after, computes, **launched)
    return diagnose(run.trace(), select=["exposed-communication"]).findings


def test_parameters_may_stay_and_shards_may_lie_within_hosts() -> None:
    (its,) = found()
    assert "nearly all compute runs beside communication already" in its.summary
    assert its.advice.startswith("keep parameters from forward to backward")
    assert "SHARD_GRAD_OP): 33 % of the bytes" in its.advice
    assert "HSDP" in its.advice
    assert "half precision" not in its.advice, "they are"
    assert (its.cost_ns, its.confidence) == (0, "low")


def test_what_is_kept_or_on_one_host_is_not_told_to_be() -> None:
    (its,) = found(gathers=1, hosts=("a",))
    assert its.advice.startswith("communicate less: less often")


@pytest.mark.parametrize("other", [{"computes": 300}, {"after": 24_000}])
def test_what_only_communicates_or_does_not_overlap_is_another_matter(
    other: dict[str, int],
) -> None:
    assert not any("nearly all compute" in its.summary for its in found(**other))


@pytest.mark.parametrize("before_us", [0, 3_000])
def test_a_time_of_the_steps_says_so_where_the_table_has_more(before_us: int) -> None:
    run = Tiny(2)
    for rank in (0, 1):
        if before_us:
            run.collective(rank, "broadcast", 0, before_us, size=1 << 20)
        for step in range(3):
            begin = 10_000 + 30_000 * step
            run.step(rank, step, begin, 30_000)
            run.collective(rank, "all_reduce", begin + 400, 9_000, size=1 << 26)
            run.kernel(rank, begin + 15_000, 14_000)
    (its,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    where = " in the steps" if before_us else ""
    assert its.summary.startswith(f"27 ms of communication{where} (median of 2 devices) runs")
