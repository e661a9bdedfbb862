"""One operation of many that stalls though all ranks are there: degraded-link says when."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def all_reduces(
    stalled: tuple[int, ...] = (20,),
    *,
    us: float = 30_000,
    late_us: float = 0,
    size: int = 1 << 24,
    backend: str = "nccl",
    count: int = 40,
) -> Measures:
    """All_reduces of 400 us of 16 MB; some take longer, have another size, or wait for rank 1."""
    run, now = Tiny(2, backend=backend), 0.0
    for nth in range(count):
        stalls = nth in stalled
        took = us if stalls else 400.0
        for rank in range(2):
            begin = now + late_us * (stalls and rank == 1)
            its = size if stalls else 1 << 24
            run.collective(rank, "all_reduce", begin, now + took - begin, size=its)
            run.kernel(rank, now + took, 500)
        now += took + 510
    return run.trace()


def found(run: Measures) -> tuple[Finding, ...]:
    return diagnose(run, select=["degraded-link"]).findings


@pytest.mark.parametrize(("stalled", "says"), [((20,), "1 of 40"), ((3, 20), "2 of 40")])
def test_an_operation_that_stalls_is_told_with_what_it_costs(
    stalled: tuple[int, ...], says: str
) -> None:
    (its,) = found(all_reduces(stalled))
    assert f"{says} all_reduces of ranks 0–1" in its.summary
    assert "30 ms once all ranks are there, where 0.4 ms is usual" in its.summary
    assert its.cost_ns == pytest.approx(len(stalled) * 29.6e6, rel=0.01)
    assert "time-outs" in its.advice


@pytest.mark.parametrize(
    "run",
    [
        all_reduces(us=3_000),  # less than ten times as long
        all_reduces(size=1 << 26),  # four times the bytes
        all_reduces(late_us=29_600),  # it waits for a late rank
        all_reduces((5, 15, 25)),  # more than a twentieth: they vary
        all_reduces(count=15, stalled=(9,)),  # of few nobody knows what is usual
        all_reduces(backend="gloo"),  # who wait for cores, too
    ],
)
def test_what_may_take_so_long_is_no_stall(run: Measures) -> None:
    assert not found(run)
