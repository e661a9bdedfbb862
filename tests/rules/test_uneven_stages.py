"""Which stage of a pipeline computes longest: in steps, and of those that are known."""

from __future__ import annotations

from commtrace.measures import Measures
from commtrace.rules._uneven_stages import heaviest_stage
from commtrace.synthetic import Tiny


def stages(computes_us: tuple[float, ...], behind_us: float = 0) -> Measures:
    """Each rank computes so long in each of four steps, the second rank some time behind them."""
    run = Tiny(len(computes_us))
    for rank, us in enumerate(computes_us):
        for step in range(4):
            run.step(rank, step, step * 2_000, 2_000)
            if us:
                run.kernel(rank, step * 2_000 + 10, us)
    if behind_us:
        run.kernel(1, 8_000, behind_us)
    return run.trace()


def test_the_one_that_computes_far_longer() -> None:
    said = heaviest_stage(stages((500, 1000, 500)), [0, 1, 2])
    assert said == "rank 1 computes 1.5 times as long as the mean stage"
    assert heaviest_stage(stages((500, 550, 500)), [0, 1, 2]) is None


def test_what_is_behind_the_steps_is_none_of_theirs() -> None:
    assert heaviest_stage(stages((500, 500, 500), behind_us=9_000), [0, 1, 2]) is None


def test_nobody_is_named_where_one_is_unknown() -> None:
    assert heaviest_stage(stages((500, 500, 500, 0)), [0, 1, 2, 3]) is None
