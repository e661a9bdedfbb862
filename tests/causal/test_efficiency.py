"""Slowdown and efficiency of runs whose numbers can be reckoned."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commtrace.causal.efficiency import efficiency, slowdown
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

Make = Callable[..., Measures]
STEPS = 5


@pytest.fixture(scope="module")
def uneven(training: Make) -> Measures:
    """Four ranks of 4 ms, one of which works for 8; 1.05 ms from call to end, 0.01 behind."""
    return training(lambda rank, step: 8_000 if rank == 3 else 4_000, ranks=4, steps=STEPS)


def test_slowdown_of_the_run_and_of_each_rank(uneven: Measures) -> None:
    table = slowdown(uneven)
    found = {(row["by"], row["rank"] or row["op"]): row["slowdown"] for row in table.dicts()}
    took, mean = 8 + 1.06, 5 + 1.06
    assert found["run", None] == pytest.approx(took / mean, rel=0.003)
    assert found["rank", 3] == pytest.approx(took / mean, rel=0.003)
    assert found["rank", 1] == pytest.approx(1, abs=0.003)
    assert found["op", "all_reduce"] == pytest.approx(1, abs=0.003)


def test_slowdown_by_an_operation_whose_transfers_differ(training: Make) -> None:
    run = training(
        lambda rank, step: 4_000,
        steps=9,
        transfer_us=lambda rank, step: 5_000 if step == 4 else 1_000,
    )
    (its,) = [row["slowdown"] for row in slowdown(run).dicts() if row["by"] == "op"]
    assert its == pytest.approx((9 * 5.06 + 4) / (9 * 5.06), rel=0.003)


def test_the_pop_efficiencies(uneven: Measures) -> None:
    (its,) = efficiency(uneven).dicts()
    took, most, mean = 9.06, 8.01, 5.01  # what is behind a call's end is own work
    assert its["load_balance"] == pytest.approx(mean / most, rel=0.003)
    assert its["communication"] == pytest.approx(most / took, rel=0.003)
    assert its["transfer"] == pytest.approx((took - 1) / took, rel=0.003)
    assert its["serialisation"] == pytest.approx(most / (took - 1), rel=0.003)
    assert its["parallel"] == pytest.approx(its["load_balance"] * its["communication"])
    assert its["communication"] == pytest.approx(its["transfer"] * its["serialisation"])


def test_a_run_that_no_graph_holds_has_no_rows() -> None:
    run = Tiny(1)
    run.kernel(0, 0, 10)
    trace = run.trace()
    assert not len(slowdown(trace))
    assert not len(efficiency(trace))


def test_a_host_that_is_ahead_of_its_waiting_gpu_does_not_work_for_its_rank() -> None:
    """Rank 0 waits 900 us in the operation, and its host goes on launching meanwhile."""
    run = Tiny(ranks=2)
    for rank, us in ((0, 100), (1, 1_000)):
        run.kernel(rank, 10, us, launch_ns=BASE_NS)
        launched = {"launch_ns": BASE_NS + 5_000}
        run.collective(rank, "all_reduce", 12 + us, 1_500 - us, size=1 << 20, **launched)
        for number in range(10):
            launched = {"launch_ns": BASE_NS + 100_000 * (number + 1)}
            run.kernel(rank, 1_520 + 10 * number, 9, **launched)
        run.collective(rank, "all_reduce", 1_622, 100, size=1 << 20, **launched)
    (row,) = efficiency(run.trace()).dicts()
    assert row["load_balance"] == pytest.approx((190 + 1_090) / 2 / 1_090, abs=0.02)


def test_stages_are_those_of_all_pipelines_together() -> None:
    run = Tiny(4, backend="gloo")
    run.groups = {"mesh_pp": (0, 2), "pp": (1, 3)}
    for step in range(STEPS):
        at, late = 12_000 * step, 4_000
        for rank in range(4):
            work = 4_000 + late * (rank > 1)
            run.step(rank, step, at, 12_000)
            run.op(rank, at, work)
            run.collective(
                rank,
                "all_reduce",
                at + work + 20,
                9_000 - work,
                group=("mesh_pp", "pp")[rank % 2],
                asynchronous=0,
                thread=1,
                stream=50,
                launch_ns=BASE_NS + (at + work) * 1_000,
            )
            run.gap(rank, at + work, 9_020 - work)
    table = {row["stage"]: row for row in slowdown(run.trace()).dicts() if row["by"] == "stage"}
    assert set(table) == {0, 1}
    assert table[0]["slowdown"] == 1
    assert table[1]["slowdown"] == pytest.approx(11.98 / 9.98, rel=0.02)


def test_of_many_ranks_those_with_the_most_work_are_replayed(training: Make) -> None:
    run = training(lambda rank, step: 8_000 if rank == 69 else 4_000 + rank, ranks=70, steps=2)
    found = {row["rank"]: row["slowdown"] for row in slowdown(run).dicts() if row["by"] == "rank"}
    assert len(found) == 70
    assert sum(value is None for value in found.values()) == 70 - 64
    assert found[69] == max(value for value in found.values() if value is not None)
