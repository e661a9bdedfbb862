"""How long steps take behind what was recorded."""

from __future__ import annotations

import itertools

import pytest

from commtrace.record.steps_after import StepsAfter


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
    afterwards = StepsAfter()
    afterwards.end()  # of the window
    afterwards.begin()
    for _ in range(steps):
        afterwards.end()
    assert afterwards.facts().get("unrecorded_steps_ns", []) == counted


def test_a_long_run_has_enough_of_them() -> None:
    afterwards = StepsAfter()
    afterwards.begin()
    for _ in range(100):
        afterwards.end()
    assert len(afterwards.facts()["unrecorded_steps_ns"]) == 32
