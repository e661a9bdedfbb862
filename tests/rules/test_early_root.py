"""Whether a root is early, or the others late."""

from __future__ import annotations

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose, early_root
from commtrace.synthetic import BASE_NS, Tiny

STEPS = 12


def found(name: str) -> list[Finding]:
    """Of two ranks the second runs 100 such operators more, and sends what it has to rank 0."""
    run, begin = Tiny(2, backend="gloo"), 0.0
    for step in range(STEPS):
        done = []
        for rank in range(2):
            run.op(rank, begin, 10_000)
            at = begin + 10_000
            for _ in range(100 * rank):
                run.op(rank, at, 50, name=name)
                at += 50
            done.append(at)
        end = max(done) + 2_000
        for rank, called in enumerate(done):
            run.step(rank, step, begin, end - begin)
            run.gap(rank, called, end - called)
            launched = BASE_NS + round(1000 * called)
            how = {"launch_ns": launched, "thread": 1, "asynchronous": 0, "root": 0}
            run.collective(rank, "gather", called, end - called, size=4_000, **how)
        begin = end
    return list(diagnose(run.trace(), select=["early-root", "straggler"]).findings)


def test_who_runs_what_the_root_does_not_is_late() -> None:
    (finding,) = found("aten::lerp_")
    assert (finding.rule, finding.ranks) == ("straggler", (1,))


def test_where_others_take_the_cores_it_is_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_root, "taken_cores", lambda _run: "others took half of the cores")
    (finding,) = diagnose(early_root.EarlyRoot.bad(), select=["early-root"]).findings
    assert finding.confidence == "low"
    assert "not sure: others took half of the cores" in finding.summary
