"""A run without steps, recorded from its start: how its ranks start is no work of theirs."""

from __future__ import annotations

from commtrace.causal.blame.culprits import culprits
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny


def solving(*, started_us: tuple[int, int, int]) -> Measures:
    """120 sweeps of 1 ms, of 1.4 on rank 2, each with an all_reduce; hosts wait for every one.

    Before the second one the ranks load their data, each for so long.
    """
    run, now = Tiny(ranks=3), 0.0
    for sweep in range(120):
        loads = started_us if sweep == 1 else (0, 0, 0)
        over = now + 1_450 + max(loads)
        for rank in range(3):
            begun = now + loads[rank]
            took = 1_400 if rank == 2 else 1_000
            run.kernel(rank, begun + 8, took, launch_ns=BASE_NS + round(1e3 * begun))
            called = {"launch_ns": BASE_NS + round(1e3 * (begun + 10)), "size": 1 << 20}
            came = begun + 10 + took
            run.collective(rank, "all_reduce", came, over - came, **called)
            run.blocking_call(rank, "cudaStreamSynchronize", begun + 20, over - begun - 15)
        now = over + 10
    return run.trace()


def test_who_computes_longer_is_found_though_another_started_later() -> None:
    found = culprits(solving(started_us=(60_000, 60_000, 0)), 0.05).found
    assert [its.ranks for its in found] == [(2,)]
    assert abs(found[0].on_top_ns / 1e6 - 108 * 0.4) < 2  # of all tenths but the first


def test_what_takes_as_long_as_the_rest_is_no_start() -> None:
    found = culprits(solving(started_us=(0, 0, 0)), 0.05).found
    assert [its.ranks for its in found] == [(2,)]
    assert abs(found[0].on_top_ns / 1e6 - 120 * 0.4) < 2
