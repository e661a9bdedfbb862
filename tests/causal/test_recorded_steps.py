"""Ranks that recorded unlike steps are compared in those that they have in common."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commtrace.arrays import NULL
from commtrace.causal.critical_path import critical_path, critical_pieces
from commtrace.causal.run.recorded_steps import of_unlike_steps, steps_in_common
from commtrace.diagnosis import CannotLook, Diagnosis
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny
from commtrace.table import Rows


def recorded(*, late_by: int, numbered_from: int | None) -> Measures:
    """Rank 1 of three computes 3 ms longer in each step; each recorded twelve of them.

    Rank 1 begins so many steps after the others, and numbers its first one so, or none.
    """
    run = Tiny(ranks=3)
    for rank in range(3):
        for at in range(12):
            step = at + late_by * (rank == 1)
            start, took = 10_000 * step, 4_000 if rank == 1 else 1_000
            if rank != 1:
                number = at
            elif numbered_from is not None:
                number = at + numbered_from
            else:
                number = NULL
            if number != NULL:
                run.step(rank, number, start, 10_000)
            run.kernel(rank, start + 10, took)
            its = {"seq": step, "step": number, "size": 1 << 26}
            run.collective(rank, "all_reduce", start + 20 + took, 7_980 - took, **its)
    return run.trace()


def diagnosed(run: Measures) -> Diagnosis:
    return diagnose(run, select=["straggler", "jitter"])


def test_who_recorded_later_steps_is_late_in_every_one_that_others_recorded() -> None:
    run = recorded(late_by=4, numbered_from=4)
    assert steps_in_common(run, (1,)).tolist() == 4 * [False] + 8 * [True] + 4 * [False]
    (finding,) = diagnosed(run).findings
    assert finding.ranks == (1,)
    assert finding.summary.startswith("rank 1 delays every step by 2.75 ms, computing")
    assert finding.cost_ns == 7 * 3_000_000 + 1_000_000  # in its first step it may wait for work
    assert finding.summary.endswith("; 8 of 16 steps were recorded there and elsewhere")
    assert "kernels more" not in finding.advice


@pytest.mark.parametrize(("numbered_from", "unlike"), [(0, False), (4, True)])
def test_steps_that_ranks_count_apart_are_not_compared(numbered_from: int, unlike: bool) -> None:
    run = recorded(late_by=0, numbered_from=numbered_from)
    assert of_unlike_steps(run) == unlike
    its = diagnosed(run)
    assert len(its.findings) == (not unlike)
    reason = its.skipped.get("straggler")
    assert reason is None or reason.startswith("needs the same steps on all ranks")


@pytest.mark.parametrize("path", [critical_path, critical_pieces])
def test_nor_do_they_have_a_critical_path(path: Callable[[Measures], Rows]) -> None:
    assert len(path(recorded(late_by=0, numbered_from=0)))
    with pytest.raises(CannotLook, match="needs the same steps on all ranks"):
        path(recorded(late_by=0, numbered_from=4))


def test_who_numbers_no_steps_is_compared_in_all() -> None:
    run = recorded(late_by=0, numbered_from=None)
    assert steps_in_common(run, (1,)).all()
    assert not diagnosed(run).skipped
