"""Findings of two sides: which are new, resolved, or remain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commtrace.diagnosis import Diagnosis, Finding

__all__ = ["Findings", "findings"]

_Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Findings:
    """Findings of the candidate that the base lacks, of the base that it lacks, and of both.

    Those of the same rule about the same ranks are one; ``remaining`` has the candidate's.
    """

    new: tuple[Finding, ...]
    resolved: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


def findings(base: Sequence[Diagnosis], candidate: Sequence[Diagnosis]) -> Findings:
    """Of several recordings of a side a finding counts that at least half of them have."""
    before, after = _usual(base), _usual(candidate)
    return Findings(
        new=tuple(its for key, its in after.items() if key not in before),
        resolved=tuple(its for key, its in before.items() if key not in after),
        remaining=tuple(its for key, its in after.items() if key in before),
    )


def _usual(side: Sequence[Diagnosis]) -> dict[_Key, Finding]:
    """The costliest of each rule and ranks, costliest first."""
    found: dict[_Key, list[Finding]] = {}
    for diagnosis in side:
        first: dict[_Key, Finding] = {}
        for its in diagnosis.findings:
            first.setdefault((its.rule, its.ranks), its)
        for key, its in first.items():
            found.setdefault(key, []).append(its)
    usual = {key: its[0] for key, its in found.items() if 2 * len(its) >= len(side)}
    return dict(sorted(usual.items(), key=lambda item: -item[1].cost_ns))
