"""The search for who delays a run leaves out only replays that could not change its answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from commtrace.causal.blame import search, sets
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.edits import bounds
from commtrace.causal.edits.run_edits import as_measured, saved_by, typical
from commtrace.causal.replay.graph import changed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work
from commtrace.measures import Measures

Make = Callable[..., Measures]
RANKS = 20


def uneven(rank: int, step: int) -> float:
    return 10_000 + (1_013 * rank * (step + 3) + 910 * step) % 1_200


def late(ranks: set[int]) -> Callable[[int, int], float]:
    return lambda rank, step: 8_000 * (rank in ranks)


@pytest.mark.parametrize("culprit", [set(), {3}, {3, 11}, {1, 2, 3, 5, 8, 13}])
def test_what_is_not_replayed_would_not_have_been_named(
    training: Make, monkeypatch: pytest.MonkeyPatch, culprit: set[int]
) -> None:
    def named(few: int) -> list[tuple[object, ...]]:
        monkeypatch.setattr(search, "_FEW", few)
        monkeypatch.setattr(search, "_FEW_SETS", few)
        monkeypatch.setattr(sets, "_FEW", few)
        run = training(uneven, ranks=RANKS, sleep_us=late(culprit))
        return [_of(its) for its in culprits(run, 0.05).found]

    assert named(few=2) == named(few=RANKS)
    assert {rank for ranks, *_ in named(few=2) for rank in ranks} == culprit  # type: ignore[attr-defined]


@pytest.mark.parametrize("late_ranks", [9, 10, 11])
def test_as_many_are_named_as_are_late_though_not_each_number_of_many_is_tried(
    training: Make, late_ranks: int
) -> None:
    """Of 26 ranks sets of 8 and of 12 are, of those that do more."""
    run = training(uneven, ranks=26, sleep_us=late({*range(late_ranks)}))
    assert [its.ranks for its in culprits(run, 0.05).found] == [tuple(range(late_ranks))]


def _of(culprit: Culprit) -> tuple[object, ...]:
    return culprit.ranks, culprit.saved_ns, culprit.on_top_ns, culprit.spikes, culprit.cause


@pytest.mark.parametrize("culprit", [set(), {3}, {3, 11}])
def test_no_rank_saves_more_than_the_critical_path_has_of_it(
    training: Make, culprit: set[int]
) -> None:
    run = training(uneven, ranks=6, sleep_us=late(culprit))
    lag, work = as_measured(run), own_work(run)
    path = bounds.critical_path(run, lag)
    most = bounds.at_most(run, path, work.own_ns, work.typical_ns)
    ranks = np.unique(run_graph(run).calls.rank)
    alone = saved_by(run, lag, (typical(run, [rank], lag) for rank in ranks.tolist()))
    rounded = path.edges.size  # a nanosecond each
    assert (alone.sum(axis=0) <= most[ranks] + rounded).all()


@pytest.mark.parametrize("culprit", [set(), {3}, {3, 4, 5}])
def test_no_set_saves_more_than_a_critical_path_without_others_leaves(
    training: Make, culprit: set[int]
) -> None:
    run = training(uneven, ranks=6, sleep_us=late(culprit))
    lag = as_measured(run)
    edits = [typical(run, ranks, lag) for ranks in ([0, 3], [1, 2, 3], [3, 4, 5], range(6))]
    edited = [bounds.path_to_end(run, changed(lag, edit)) for edit in edits]
    paths = [bounds.critical_path(run, lag), *edited]
    saved = saved_by(run, lag, edits).sum(axis=0).tolist()
    for at, (edit, saves) in enumerate(zip(edits, saved, strict=True)):
        assert saves <= bounds.saves_at_most(paths, edit) <= bounds.saves_at_most(paths[:1], edit)
        assert saves == bounds.saves_at_most([paths[0], paths[at + 1]], edit)
