"""All rules over one trace, causes before their symptoms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from commtrace.errors import UsageError
from commtrace.rules._registry import RULES, rule_named
from commtrace.rules._rule import CannotLook, Rule
from commtrace.schema import Diagnosis, Finding

if TYPE_CHECKING:
    from commtrace.trace import Trace

__all__ = ["diagnose"]


def diagnose(
    trace: Trace,
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
) -> Diagnosis:
    """Ask every rule, or the selected ones. ``thresholds`` is {rule: {field: value}}.

    Findings come costliest first, symptoms behind their cause. UsageError for an unknown
    rule or threshold.
    """
    chosen = {rule_named(name).name() for name in select} or set(RULES)
    chosen -= {rule_named(name).name() for name in ignore}
    wanted = {rule_named(name).name(): dict(values) for name, values in (thresholds or {}).items()}
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for name in sorted(chosen):
        rule = _configured(RULES[name], wanted.get(name, {}))
        try:
            findings.extend(rule.check(trace))
        except CannotLook as reason:
            skipped[name] = str(reason)
    return Diagnosis(tuple(_ordered(findings)), skipped)


def _configured(rule: type[Rule], values: Mapping[str, Any]) -> Rule:
    known: dict[str, Callable[[Any], Any]] = {f.name: f.default.__class__ for f in fields(rule)}
    for name, value in values.items():
        if name not in known:
            choices = ", ".join(known) or "none"
            raise UsageError(f"{rule.name()} has no threshold {name!r}; it has: {choices}")
        try:
            values = {**values, name: known[name](value)}
        except (TypeError, ValueError):
            kind = getattr(rule, name).__class__.__name__
            raise UsageError(f"{rule.name()}.{name} must be a {kind}, not {value!r}") from None
    return rule(**values)


def _ordered(findings: list[Finding]) -> list[Finding]:
    costliest = sorted(findings, key=lambda finding: -finding.cost_ns)
    causes = [_cause(finding, costliest) for finding in costliest]
    placed: list[Finding] = []

    def place(cause: Finding | None) -> None:
        for finding, its in zip(costliest, causes, strict=True):
            if its is cause:
                placed.append(replace(finding, explained_by=cause.rule) if cause else finding)
                place(finding)

    place(None)
    return placed


def _cause(symptom: Finding, findings: list[Finding]) -> Finding | None:
    for other in findings:
        overlap = other.start_ns <= symptom.end_ns and symptom.start_ns <= other.end_ns
        if overlap and symptom.rule in RULES[other.rule].explains:
            return other
    return None
