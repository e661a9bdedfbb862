"""What it takes to report on rules: a diagnosis weighed, a rule explained."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from commtrace.analysis import Explanation, Verdict
from commtrace.metrics.whole import whole
from commtrace.rules._diagnose import diagnose
from commtrace.rules._registry import RULES, rule_named

if TYPE_CHECKING:
    from commtrace.schema import Diagnosis
    from commtrace.trace import Trace

__all__ = ["explanation", "verdict"]


def explanation(name: str) -> Explanation:
    """The rule of a name, explained. Raises UsageError, which names the near ones."""
    rule = rule_named(name)
    example = rule.bad()
    return Explanation(
        rule=rule.name(),
        documentation=rule.__doc__ or "",
        thresholds={field.name: getattr(rule, field.name) for field in fields(rule)},
        example=rule.bad.__doc__ or "",
        verdict=verdict(example, diagnose(example, select=[rule.name()])),
    )


def verdict(trace: Trace, diagnosis: Diagnosis) -> Verdict:
    """A trace's diagnosis with what its findings are weighed by."""
    good_news = frozenset(name for name, rule in RULES.items() if rule.good_news)
    its = whole(trace)
    return Verdict(diagnosis, its.time_ns, good_news, its.in_steps)
