"""What the accuracy benchmark is made of: one run of each kind; the benchmark makes many."""

from __future__ import annotations

import pytest

from benchmarks.faults import CLEAN, FAULTS, Fault, case
from benchmarks.several import JOBS, Job, judged
from commtrace.rules import RULES, diagnose


def test_every_rule_has_a_fault() -> None:
    assert {fault.rule for fault in FAULTS} == set(RULES)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.inject.__name__)
def test_a_large_fault_is_named_with_its_culprit_and_its_gain(fault: Fault) -> None:
    run = case(1, fault, smallest=0.2)
    (truth,) = run.truths
    findings = diagnose(run.trace, select=[fault.rule]).findings
    assert findings
    assert truth.named_by(findings[0])
    if truth.gain_us is not None:
        assert findings[0].cost_ns / 1e3 == pytest.approx(truth.gain_us, rel=0.25)


@pytest.mark.parametrize("kind", CLEAN)
def test_nothing_is_found_where_nothing_is_wrong(kind: str) -> None:
    findings = diagnose(CLEAN[kind](1).trace).findings
    assert [one.rule for one in findings if not RULES[one.rule].good_news] == []


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_several_culprits_at_once_are_named_with_their_savings(job: Job) -> None:
    for one in judged(job, 1):
        assert one.named
        assert one.cause in (True, None)
        assert abs(one.alone or 0) < 0.02
        assert abs(one.on_top or 0) < 0.02
