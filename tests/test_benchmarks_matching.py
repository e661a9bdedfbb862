"""The benchmark of matching, at the smallest size: it finds what it generated."""

from __future__ import annotations

from benchmarks.matching import generate, measure


def test_what_was_generated_is_matched() -> None:
    run = generate(ranks=3, operations=40)
    _, _, alone = measure(run, rounds=1)
    assert len(run.collectives) > 100
    assert alone <= 8  # 0.5 % of the events are lost, and windows open late
