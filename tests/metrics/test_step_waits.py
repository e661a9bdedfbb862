"""Waits by rank and step, and how much of what is exposed is waiting."""

from __future__ import annotations

from commtrace.measures import Measures
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.step_waits import step_waits
from commtrace.synthetic import Tiny


def late(steps: int, *, in_steps: bool = True) -> Measures:
    """Rank 1 is 400 µs late to the all_reduce of every other step, rank 0 to the others."""
    run = Tiny(2)
    for step in range(steps):
        for rank in range(2):
            begin = step * 1000 + 500 * (rank == step % 2)
            if in_steps:
                run.step(rank, step, step * 1000, 1000)
            run.kernel(rank, step * 1000, 100)
            took = step * 1000 + 600 - begin
            number = step if in_steps else None
            run.collective(rank, "all_reduce", begin, took, size=4, step=number)
    return run.trace()


def test_every_rank_has_a_row_for_every_step() -> None:
    table = step_waits(late(3)).frame()
    assert table[["rank", "step"]].to_numpy().tolist() == [
        [rank, step] for rank in range(2) for step in range(3)
    ]
    assert table["caused_wait_ns"].tolist() == [500_000, 0, 500_000, 0, 500_000, 0]
    assert table["wait_ns"].tolist() == [0, 500_000, 0, 500_000, 0, 500_000]


def test_a_run_without_steps_has_tenths() -> None:
    table = step_waits(late(20, in_steps=False))
    assert sorted({*table.ints("step").tolist()}) == list(range(10))
    assert table.ints("wait_ns").sum() == 20 * 500_000


def test_waiting_under_compute_is_not_exposed() -> None:
    (early, other) = exposed_waits(late(1)).ints("exposed_wait_ns").tolist()
    # Rank 0 is late; rank 1 waits for 500 µs, the first 100 of them under its kernel.
    assert (early, other) == (0, 400_000)
