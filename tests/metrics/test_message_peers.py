"""Peers that calls do not name, as in pipelines side by side, are known from the matches."""

from __future__ import annotations

from commtrace.metrics.run.joined_rows import joined_messages
from commtrace.metrics.run.pair_traffic import pair_traffic
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def _pipelines(batches: int = 2) -> Tiny:
    """Ranks 0 and 2 hand on to 1 and 3, and back; only rank 1 names its peer."""
    run = Tiny(4, backend="gloo")
    told, both = {1: 0}, ((0, 1), (2, 3))
    for step in range(6):
        begin = step * 3_000.0
        for first, second in both:
            for rank in (first, second):
                run.step(rank, step, begin, 3_000)
            for batch in range(batches):
                ready = begin + 1000 * (batch + 1)
                posted = ready - 5 if batch else begin + 5
                run.op(first, ready - 990, 980)
                same = {"thread": 1, "step": step, "asynchronous": 0, "size": 1 << 20}
                run.collective(first, "send", ready - 5, 10, peer=told.get(first), **same)
                run.collective(
                    second, "recv", posted, ready + 5 - posted, peer=told.get(second), **same
                )
                run.gap(second, posted, ready + 5 - posted)
                run.op(second, ready + 6, 980)
    return run


def test_the_other_end_of_a_match_is_the_peer() -> None:
    rows = joined_messages(_pipelines().trace())
    pairs = set(zip(rows.ints("rank").tolist(), rows.ints("peer").tolist(), strict=True))
    assert pairs == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_traffic_has_both_pipelines() -> None:
    found = pair_traffic(_pipelines().trace())
    ends = zip(found.ints("source").tolist(), found.ints("destination").tolist(), strict=True)
    assert sorted(ends) == [(0, 1), (2, 3)]


def test_a_pipeline_is_named_with_all_its_stages() -> None:
    (found, *_) = diagnose(_pipelines().trace(), select=["pipeline-bubble"]).findings
    assert found.ranks == (0, 1, 2, 3)
