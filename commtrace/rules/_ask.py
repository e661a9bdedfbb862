"""The loop that asks the rules, and the order of what they find."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import structs

from commtrace.diagnosis import (
    LOOKED,
    CannotLook,
    Diagnosis,
    Explanation,
    Finding,
    Note,
    Verdict,
)
from commtrace.metrics.run.called_at import called_at
from commtrace.metrics.run.places import place
from commtrace.metrics.run.sampled import SAMPLE_LACKS, is_sampled
from commtrace.metrics.run.whole import of_time, share_pct, step_count, whole
from commtrace.rules._all import RULES, rule_named
from commtrace.rules._rule import Rule
from commtrace.rules._thresholds import configured

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["broken", "diagnose", "explanation", "verdict"]


_LEAST, _LITTLE = "min_step_share", 0.4  # the threshold of what is to be saved; so much of it
_NAMED = 3
_MOSTLY = 0.5  # of its operations
_MUCH = 0.05  # of the time
_IF_UNSURE = 0.75  # of what is saved
_IF_NOT_NEEDED = 0.5
_RIVALS = 0.5  # of what takes a model's memory: what takes none comes before it
_OF_KNOWN = 0.5  # of what else a cause costs: a rule has seen that it is one
_FAR_LESS = 10
_OF_RANKS = {"late-receiver", "late-root", "late-sender", "straggler"}
_OF_UNSURE = 0.5  # times what else is a symptom: what is surer comes before it


def diagnose(
    run: Measures,
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
    thresholds: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Diagnosis:
    """Ask every rule, or the selected ones. ``thresholds`` is {rule: {field: value}}.

    ``progress`` is called with the rules asked and the rules there are, before the first and
    after each.

    Findings come costliest first, symptoms after their cause; one that has no cost of its
    own where its symptoms' would stand. Of what may be needed half counts, of what is unsure three
    quarters; what takes a model's memory comes behind what saves half as much without. None costs
    more than the time it is a share of. A rule that breaks is skipped, with a note. UsageError for
    an unknown rule or threshold. ``skipped`` also has what costs a little less than rules ask for:
    all of it where nothing that costs time is found, ranks that are late where no other is.
    """
    chosen = {rule_named(name).name() for name in select} or set(RULES)
    chosen -= {rule_named(name).name() for name in ignore}
    given = {name: configured(name, values) for name, values in (thresholds or {}).items()}
    rules = [given.get(name, RULES[name]()) for name in sorted(chosen)]
    asked = _answers(run, rules, progress or (lambda *_: None))
    found = tuple(asked.in_order(run))
    skipped = asked.skipped
    if unnamed := _unnamed(rules, found):
        skipped = {**_little(run, unnamed), **skipped}
    all_broke = 0 < len(chosen) == len(asked.notes)
    return Diagnosis(found, skipped, tuple(asked.notes), all_broke, frozenset(chosen))


class _Answers(NamedTuple):
    """What rules found, why some were skipped, and which broke."""

    found: list[Finding]
    skipped: dict[str, str]
    notes: list[Note]

    def in_order(self, run: Measures) -> list[Finding]:
        """The findings, placed, as diagnose has them; none costs more than there is time."""
        at_most = whole(run).time_ns
        placed = (_placed(found, run) for found in _mooted(self.found))
        held = [replace(one, cost_ns=min(one.cost_ns, at_most)) for one in placed]
        return _ordered(held, at_most)


def _answers(
    run: Measures, rules: Collection[Rule], shown: Callable[[int, int], object]
) -> _Answers:
    its = _Answers([], {}, [])
    for asked, rule in enumerate(rules):
        shown(asked, len(rules))
        name, found = rule.name(), list[Finding]()
        if is_sampled(run) and not rule.of_single_events:
            its.skipped[name] = SAMPLE_LACKS
            continue
        try:
            found.extend(rule.check(run))
        except CannotLook as reason:
            if not found:  # else it saw something before it could not look further
                its.skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001 - one that breaks costs no other its answer
            found.clear()
            its.skipped[name] = broken(name, error)
            its.notes.append(Note("broken-rule", f"{name} was not checked: {its.skipped[name]}"))
        its.found.extend(found)
    shown(len(rules), len(rules))
    return its


def _unnamed(rules: list[Rule], found: Collection[Finding]) -> list[Rule]:
    """Those to ask for what costs little: all if nothing costs, of late ranks if no other is."""
    costly = {one.rule for one in found if one.cost_ns}
    if not costly:
        return rules
    return [] if costly & _OF_RANKS else [rule for rule in rules if rule.name() in _OF_RANKS]


def _little(run: Measures, rules: Collection[Rule]) -> dict[str, str]:
    """What rules find that costs less than they ask for, in words: the costliest causes."""
    less = [
        structs.replace(rule, min_step_share=_LITTLE * least)
        for rule in rules
        if (least := getattr(rule, _LEAST, 0))
    ]
    found = _answers(run, less, lambda *_: None).in_order(run)
    causes = [one for one in found if one.cost_ns and not one.explained_by]
    sure = [one for one in causes if not _is_unsure(one)][:_NAMED]
    return {
        one.rule: f"{LOOKED}{one.summary} ({share_pct(one.cost_ns, run):.1f} % {of_time(run)})"
        for one in reversed(sure)  # of a rule the costliest
    }


def _mooted(findings: list[Finding]) -> Iterator[Finding]:
    """The findings; those that are moot with the rule that says so.

    What saves more is not, beside what takes a model's memory to save it.
    """
    for one in findings:
        by = (
            other.rule
            for other in findings
            if one.rule in RULES[other.rule].moots
            and not one.by_itself
            and _share(one, other) > _MOSTLY
            and not _rivals(one, other)
            and not (other.spares_memory and one.cost_ns > other.cost_ns)
        )
        yield replace(one, explained_by=next(by, one.explained_by))


def _share(one: Finding, other: Finding) -> float:
    """The share of one's operations that are the other's."""
    if one.operations is None or other.operations is None or not len(one.operations):
        return 0.0
    return float(np.isin(one.operations, other.operations).mean())


def _placed(finding: Finding, run: Measures) -> Finding:
    """The finding, with the label that it lies in, and the lines that called its operations."""
    label = None if finding.when is None else place(run, finding.when, finding.ranks)
    its = finding.operations
    lines = () if its is None else called_at(run, its, finding.ranks)
    return replace(
        finding, place=label or finding.place, called_at=lines, when=None, operations=None
    )


def broken(name: str, error: Exception) -> str:
    """Why a rule is skipped that met what nobody thought of."""
    said = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"error in {name}: {' '.join(said.split())}; please report it with the trace"


def explanation(name: str) -> Explanation:
    """The rule of a name, explained. Raises UsageError, which names the near ones."""
    rule = rule_named(name)
    example = rule.bad()
    return Explanation(
        rule=rule.name(),
        documentation=rule.__doc__ or "",
        thresholds=rule.thresholds(),
        example=rule.bad.__doc__ or "",
        verdict=verdict(example, diagnose(example, select=[rule.name()])),
    )


def verdict(run: Measures, diagnosis: Diagnosis) -> Verdict:
    """A trace's diagnosis with what its findings are weighed by."""
    good_news = frozenset(name for name, rule in RULES.items() if rule.good_news)
    its = whole(run)
    return Verdict(diagnosis, its.time_ns, good_news, its.in_steps, step_count(run))


def _ordered(findings: list[Finding], time_ns: int) -> list[Finding]:
    """The costliest first, each with its symptoms behind it; of unsure ones some of it counts."""
    costliest = sorted(findings, key=lambda one: (-one.cost_ns, one.rule, one.start_ns))
    causes = _causes_of(costliest)

    def symptoms(cause: Finding | None) -> list[Finding]:
        return [one for one, its in zip(costliest, causes, strict=True) if its is cause]

    def weight(finding: Finding) -> int:
        # What has no cost of its own, as a disagreement, is as bad as what it explains.
        explained = max((one.cost_ns for one in symptoms(finding)), default=0)
        return finding.cost_ns or max(explained, finding.weighs_ns)

    sure = [one for one in symptoms(None) if not _is_unsure(one) and not _may_be_needed(one)]

    # What is paid once, or may be meant, goes behind what a program surely pays again and again.
    again = (one for one in symptoms(None) if not RULES[one.rule].paid_once)
    much = [one.cost_ns for one in again if not _is_unsure(one)]
    behind = min((its for its in much if its >= _MUCH * time_ns), default=time_ns + 1) - 1

    def weight_in_order(finding: Finding) -> int:
        its = weight(finding)
        its = round(_IF_UNSURE * its) if _is_unsure(finding) else its
        if _may_be_needed(finding):
            if finding.cost_ns:  # of which part is theirs, though not most
                theirs = sum(one.cost_ns for one in sure if finding.rule in _explains(one))
                its = max(its - theirs, 0)
            its = round(_IF_NOT_NEEDED * its)
        last = finding.behind or RULES[finding.rule].paid_once
        its = min(its, behind) if last else its
        rivals = (weight_in_order(one) for one in symptoms(None) if _rivals(one, finding))
        return min((its, *(weighs - 1 for weighs in rivals)))

    def placed(cause: Finding | None) -> Iterator[Finding]:
        its = sorted(symptoms(cause), key=_is_unsure)
        for finding in sorted(its, key=weight_in_order, reverse=True):
            yield replace(finding, explained_by=cause.rule if cause else None)
            yield from placed(finding)

    return list(placed(None))


def _is_unsure(finding: Finding) -> bool:
    return finding.confidence == "low"


def _may_be_needed(finding: Finding) -> bool:
    return finding.spares_memory or (RULES[finding.rule].may_be_needed and not finding.by_itself)


def _rivals(one: Finding, of_memory: Finding) -> bool:
    """Whether one saves half or more of the same time as another, which takes a model's memory."""
    if of_memory.spares_memory != "all":
        return False
    same = (*_explains(of_memory), *RULES[of_memory.rule].moots)
    sure = one.rule in same and not _is_unsure(one) and not one.spares_memory
    return sure and one.cost_ns >= _RIVALS * of_memory.cost_ns


def _explains(finding: Finding) -> Collection[str]:
    """The rules whose findings are its symptoms."""
    its: Collection[str] | None = finding.explains
    return RULES[finding.rule].explains if its is None else its


def _causes_of(findings: list[Finding]) -> list[Finding | None]:
    """Of each finding the first that explains it, but for what it explains itself."""
    causes: dict[int, Finding] = {}

    def is_behind(finding: Finding, symptom: Finding) -> bool:
        its: Finding | None = finding
        while its is not None and its is not symptom:
            its = causes.get(id(its))
        return its is symptom

    for symptom in findings:
        its = (one for one in findings if _causes(one, symptom) and not is_behind(one, symptom))
        if (cause := next(its, None)) is not None:
            causes[id(symptom)] = cause
    return [causes.get(id(finding)) for finding in findings]


def _causes(other: Finding, symptom: Finding) -> bool:
    """Whether a finding explains another: at its time, of its ranks, of its size."""
    same_times = (other.start_ns, other.end_ns) == (symptom.start_ns, symptom.end_ns)
    if symptom.rule in RULES[other.rule].same and same_times:
        return True
    if _rivals(symptom, other):
        return False
    overlap = other.start_ns <= symptom.end_ns and symptom.start_ns <= other.end_ns
    elsewhere = other.ranks and symptom.ranks and not {*other.ranks} & {*symptom.ranks}
    if not overlap or elsewhere:
        return False
    least = RULES[symptom.rule].explained_by_share
    if symptom.confidence == "low" != other.confidence:
        least *= _OF_UNSURE
    wanted = least * (symptom.cost_ns or symptom.weighs_ns)
    size = max(other.cost_ns, other.weighs_ns)
    known = symptom.explained_by == other.rule
    if known and size >= _OF_KNOWN * wanted:
        return True
    return (known or symptom.rule in _explains(other)) and _is_enough(other, symptom, size, wanted)


def _is_enough(other: Finding, symptom: Finding, size: float, wanted: float) -> bool:
    if not other.cost_ns:  # unknown: of the same operations, as far as streams tell
        return not symptom.streams or bool({*other.streams} & {*symptom.streams})
    if symptom.by_itself and other.cost_ns < symptom.cost_ns:
        return False
    # However long others wait for it.
    return size >= wanted and _FAR_LESS * other.cost_ns >= symptom.cost_ns
