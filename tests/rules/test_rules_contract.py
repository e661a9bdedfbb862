"""One contract for all rules there are and will be."""

from __future__ import annotations

import math

import pytest

from commtrace.diagnosis import LOOKED
from commtrace.rules import RULES, diagnose, rule_named

SECTIONS = ("What it detects", "Why it costs time", "What to do", "Blind spots")


@pytest.mark.parametrize("name", RULES)
def test_it_is_silent_on_its_good_trace(name: str) -> None:
    good = diagnose(RULES[name].good(), select=[name])
    assert not good.findings
    reason = good.skipped.get(name, LOOKED)
    assert reason.startswith(LOOKED), "looked and fine, or found little, not unable to look"


@pytest.mark.parametrize("name", RULES)
def test_its_documentation_has_every_section(name: str) -> None:
    rule = RULES[name]
    text = rule.__doc__ or ""
    assert not text.startswith(f"{rule.__name__}(")
    for section in SECTIONS:
        assert f"\n    {section}\n" in text, section
    for threshold, default in rule.thresholds().items():
        assert f"``{threshold}``" in text, f"threshold {threshold} is not documented"
        assert isinstance(default, int | float | str)


@pytest.mark.parametrize("name", RULES)
def test_on_its_bad_trace_it_reports_and_its_findings_are_whole(name: str) -> None:
    trace = RULES[name].bad()
    present = set(trace.rows("ranks").ints("rank").tolist())
    findings = diagnose(trace, select=[name]).findings
    assert findings
    for finding in findings:
        assert "\n" not in finding.summary
        assert 10 < len(finding.summary) < 220
        assert finding.advice
        assert finding.evidence, "a claim needs a number"
        for one in finding.evidence:
            assert one.unit
            assert math.isfinite(one.value)
        assert set(finding.ranks) <= present
        assert finding.start_ns <= finding.end_ns
        assert isinstance(finding.cost_ns, int)
        assert finding.cost_ns >= 0


def test_causes_form_no_circle() -> None:
    def below(name: str, seen: tuple[str, ...]) -> None:
        assert name not in seen
        for symptom in rule_named(name).explains:
            below(rule_named(symptom).name(), (*seen, name))

    for name in RULES:
        below(name, ())
