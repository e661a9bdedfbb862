"""How long steps take before and behind what was recorded."""

from __future__ import annotations

import itertools

import pytest

from commtrace.record.unrecorded import Unrecorded


@pytest.mark.parametrize(
    ("steps", "counted"),
    [(0, []), (1, []), (4, [2, 3, 4]), (7, [2, 3, 4, 5, 6, 7]), (8, [4, 5, 6, 7, 8])],
)
def test_of_few_steps_only_the_first_is_disturbed(
    steps: int, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nth step takes n ns."""
    clock = itertools.accumulate(itertools.count())
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    afterwards = Unrecorded()
    afterwards.end()  # of the window
    afterwards.begin()
    for _ in range(steps):
        afterwards.end()
    assert afterwards.facts().get("unrecorded_steps_ns", []) == counted


def test_a_long_run_has_enough_of_them() -> None:
    afterwards = Unrecorded()
    afterwards.begin()
    for _ in range(100):
        afterwards.end()
    assert len(afterwards.facts()["unrecorded_steps_ns"]) == 32


@pytest.mark.parametrize(("steps", "counted"), [(1, []), (2, [7, 3]), (3, [3, 4])])
def test_where_one_is_left_the_last_before_the_window_counts(
    steps: int, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes 7 ns, the nth behind the window n + 1."""
    clock = itertools.accumulate(itertools.chain((0, 7, 0), itertools.count(2)))
    monkeypatch.setattr("time.perf_counter_ns", lambda: next(clock))
    its = Unrecorded()
    its.begin_before()
    its.end_before()
    its.begin()
    for _ in range(steps):
        its.end()
    assert its.facts().get("unrecorded_steps_ns", []) == counted


def test_a_step_that_never_began_does_not_count() -> None:
    its = Unrecorded()
    its.end_before()
    its.begin()
    its.end()
    its.end()
    assert len(its.facts()["unrecorded_steps_ns"]) == 1
