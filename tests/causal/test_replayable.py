"""Where replays of a run say nothing, and where not surely."""

from __future__ import annotations

import pytest

from commtrace.causal.blame.culprits import culprits
from commtrace.causal.run.replayable import need_replay, replayable
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import CannotLook
from commtrace.measures import Measures, measure
from commtrace.synthetic import BASE_NS, Tiny


def paused(pauses: int, kernels: int = 10) -> Measures:
    """In each step the devices pause before so many kernels; rank 1's first takes 2 ms longer."""
    run = Tiny(ranks=2)
    now = 0.0
    for step in range(4):
        for rank in range(2):
            at = now
            for number in range(kernels):
                at += 200 if number < pauses else 1
                lasts = 100 + 2000 * (rank == 1 and not number)
                run.kernel(rank, at, lasts, launch_ns=BASE_NS + round(1e3 * now))
                at += lasts
            end = now + 200 * kernels + 100 * kernels + 2200
            launched = {"launch_ns": BASE_NS + round(1e3 * now)}
            run.collective(rank, "all_reduce", at + 2, end - at, size=1 << 20, **launched)
            run.step(rank, step, now, end + 10 - now)
        now = end + 10
    return run.trace()


@pytest.mark.parametrize(("pauses", "explained"), [(0, 1.0), (3, 0.82), (4, 0.73)])
def test_how_much_the_graph_explains(pauses: int, explained: float) -> None:
    run = paused(pauses)
    assert run_graph(run).explained == pytest.approx(explained, abs=0.02)
    (late,) = culprits(run, 0.05).found
    assert late.ranks == (1,)
    assert (late.doubt is None) == (explained > 0.9)


def test_too_little_that_is_explained_is_no_ground_for_a_replay() -> None:
    run = paused(6)
    assert not replayable(run)
    with pytest.raises(CannotLook, match=r"shows for 55 % of it"):
        culprits(run, 0.05)


def test_a_run_without_a_graph_is_asked_for_it_once() -> None:
    run, asked = Tiny(ranks=2).trace(), []

    @measure
    def lacking(run: Measures) -> None:
        asked.append(run)
        raise CannotLook("needs more")

    for _ in range(2):
        with pytest.raises(CannotLook, match="needs more"):
            lacking(run)
    assert len(asked) == 1
    with pytest.raises(CannotLook, match="needs communication"):
        need_replay(run)
