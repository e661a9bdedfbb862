"""Findings of two sides: which are new, resolved, or remain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from commtrace.diagnosis import Diagnosis, Finding

__all__ = ["Findings", "findings"]

_Whose = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Findings:
    """Findings of the candidate that the base lacks, of the base that it lacks, and of both.

    Those of the same rule about the same ranks are one, of several those in the same place;
    ``remaining`` has the candidate's.
    """

    new: tuple[Finding, ...]
    resolved: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


def findings(base: Sequence[Diagnosis], candidate: Sequence[Diagnosis]) -> Findings:
    """Of several recordings of a side a finding counts that at least half of them have."""
    before, after = _usual(base), _usual(candidate)
    new: list[Finding] = []
    resolved: list[Finding] = []
    remaining: list[Finding] = []
    for whose in {**after, **before}:
        was, its = before.get(whose, []), after.get(whose, [])
        kept = {one.place for one in was} & {one.place for one in its}
        # Those in the same place remain; of what is left in others the costliest stand for those.
        stay = sorted(its, key=lambda one: (one.place not in kept, -one.cost_ns))
        go = sorted(was, key=lambda one: (one.place in kept, one.cost_ns))
        remaining += stay[: len(was)]
        new += stay[len(was) :]
        resolved += go[: max(len(was) - len(its), 0)]
    return Findings(*(tuple(sorted(some, key=_cost)) for some in (new, resolved, remaining)))


def _usual(side: Sequence[Diagnosis]) -> dict[_Whose, list[Finding]]:
    """Of each rule and ranks as many as half of the recordings have: those of most, then costly."""
    found: dict[_Whose, list[list[Finding]]] = {}
    for diagnosis in side:
        here: dict[_Whose, list[Finding]] = {}
        for its in diagnosis.findings:
            here.setdefault((its.rule, its.ranks), []).append(its)
        for whose, several in here.items():
            found.setdefault(whose, []).append(several)
    usual = {}
    for whose, recordings in found.items():
        counts = sorted((len(several) for several in recordings), reverse=True)
        enough = (len(side) + 1) // 2
        count = counts[enough - 1] if len(counts) >= enough else 0
        each = [one for several in recordings for one in _by_place(several).items()]
        seen = Counter(place for place, _ in each)
        costliest = dict(sorted(each, key=lambda one: one[1].cost_ns))
        often = sorted(costliest, key=lambda one: (-min(seen[one], enough), _cost(costliest[one])))
        usual[whose] = [costliest[one] for one in often[:count]]
    return usual


def _by_place(several: list[Finding]) -> dict[tuple[str | None, int], Finding]:
    """The findings by their place, and the how manieth there each is."""
    found: dict[tuple[str | None, int], Finding] = {}
    nth = Counter[str | None]()
    for one in sorted(several, key=_cost):
        found[one.place, nth[one.place]] = one
        nth[one.place] += 1
    return found


def _cost(its: Finding) -> int:
    return -its.cost_ns
