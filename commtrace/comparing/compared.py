"""Two sides compared: whether the step changed, what it is made of, what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from commtrace.analysis import Summary
from commtrace.comparing.changes import changes
from commtrace.comparing.differing import differing
from commtrace.comparing.estimates import Estimate, difference
from commtrace.comparing.findings import Findings, findings
from commtrace.comparing.outlying import outlying
from commtrace.comparing.published import of_step
from commtrace.comparing.recorded import Recorded, recordings, started
from commtrace.comparing.rows import of_change, of_operations, of_ranks, of_sizes, of_work
from commtrace.comparing.sides import Side, in_turn
from commtrace.comparing.tables import CHANGES, COUNTS, OUTLYING, RANKS, WORK
from commtrace.comparing.typical import TypicalStep, typical_step
from commtrace.diagnosis import Note
from commtrace.table import Rows

__all__ = ["VERDICTS", "Compared", "Recorded", "StepChange", "Verdict", "compared", "step_estimate"]

Verdict = Literal["same", "slower", "faster", "inconclusive"]
Between = Literal["measured", "published"]
VERDICTS: tuple[Verdict, ...] = ("same", "slower", "faster", "inconclusive")

_ENOUGH = 3  # steps that count, on each side
_SAME_PCT = 5.0  # a change is none if it is surely less


@dataclass(frozen=True)
class StepChange:
    """The mean step of both sides, and the change in percent of the base's, with its interval.

    Null where a side has no steps. ``base_steps`` and ``candidate_steps`` are how many count.
    ``between`` says where the difference between recordings is from: ``measured`` on several of
    each side, or ``published``.
    """

    base_ns: int | None
    candidate_ns: int | None
    change_pct: float | None
    low_pct: float | None
    high_pct: float | None
    base_steps: int
    candidate_steps: int
    between: Between


@dataclass(frozen=True, eq=False)
class Compared:
    """Two sides compared. ``changes`` and the other tables are those of ``tables``.

    ``why`` says why the verdict is no other. ``paths`` are the steps of both sides, aligned by
    their number: a name, whether it counts, and its critical path by kind, in ns. ``typical`` is a
    step of each side, None where one has none.
    """

    base: tuple[Summary, ...]
    candidate: tuple[Summary, ...]
    verdict: Verdict
    why: str
    step: StepChange
    changes: Rows
    rest_ns: int
    operations: Rows
    kernels: Rows
    ranks: Rows
    outlying: Rows
    findings: Findings
    notes: tuple[Note, ...]
    paths: tuple[tuple[str, bool, dict[str, int]], ...]
    typical: tuple[TypicalStep | None, TypicalStep | None] = (None, None)

    @property
    def appeared(self) -> Rows:
        """The operations that only the candidate has."""
        return self.operations.take(self.operations.floats("base_count") == 0)

    @property
    def disappeared(self) -> Rows:
        """The operations that only the base has."""
        return self.operations.take(self.operations.floats("candidate_count") == 0)


def compared(
    base: Sequence[Recorded], candidate: Sequence[Recorded], margin_pct: float | None = None
) -> Compared:
    """What the candidate does differently; each side is one recording or several.

    A change that is surely less than ``margin_pct``, 5 if it is not given, is none.
    """
    base, candidate = sorted(base, key=started), sorted(candidate, key=started)
    of_sides = [recordings(side) for side in (base, candidate)]
    sides = [
        [(one.measures, its.steps) for one, its in zip(side, recorded, strict=True)]
        for side, recorded in zip((base, candidate), of_sides, strict=True)
    ]
    sizes = of_sizes(*sides)
    of_sides[0] = [replace(its, sample=its.sample.renamed(sizes)) for its in of_sides[0]]
    step = _step(*of_sides)
    whole = step.base_ns is not None
    found = changes(*of_sides) if whole else []
    rows = [of_change(change, sides[0], sides[1], sizes) for change in found]
    change = (step.candidate_ns or 0) - (step.base_ns or 0)
    verdict, why = _verdict(step, _SAME_PCT if margin_pct is None else margin_pct, of_sides)
    return Compared(
        tuple(one.run for one in base),
        tuple(one.run for one in candidate),
        verdict,
        why,
        step,
        CHANGES.of_dicts(rows),
        change - sum(row["change_ns"] for row in rows),
        COUNTS.of_dicts(of_operations(sides[0], sides[1], sizes) if whole else []),
        WORK.of_dicts(of_work(*sides) if whole else []),
        RANKS.of_dicts(of_ranks(*sides)),
        OUTLYING.of_dicts(outlying(*of_sides)),
        findings([one.diagnosis for one in base], [one.diagnosis for one in candidate]),
        differing(base, candidate, *of_sides),
        tuple(_paths(*of_sides)),
        (typical_step(sides[0]), typical_step(sides[1])),
    )


def step_estimate(base: Side, candidate: Side) -> Estimate:
    """How much longer a step is."""
    kinds = {key.kind for its in (*base, *candidate) for key, _ in its.sample.path_ns}
    times = {kind: (_of_kind(base, kind), _of_kind(candidate, kind)) for kind in sorted(kinds)}
    return difference(
        [its.step_ns for its in base],
        [its.step_ns for its in candidate],
        of_step(times, base, candidate),
        in_turn=in_turn(base, candidate),
    )


def _of_kind(side: Side, kind: str) -> float:
    return float(np.mean([its.of_kind(kind) for its in side]))


def _step(base: Side, candidate: Side) -> StepChange:
    steps = [sum(len(its.steps) for its in side) for side in (base, candidate)]
    between: Between = "measured" if min(len(base), len(candidate)) > 1 else "published"
    if not all(its.steps for its in (*base, *candidate)):
        return StepChange(None, None, None, None, None, steps[0], steps[1], between)
    means = [np.mean([its.step_ns.mean() for its in side]) for side in (base, candidate)]
    its = step_estimate(base, candidate).times(100 / float(means[0]))
    change, low, high = (round(value, 3) for value in (its.change, its.low, its.high))
    before, after = map(round, means)
    return StepChange(before, after, change, low, high, steps[0], steps[1], between)


def _paths(base: Side, candidate: Side) -> Iterator[tuple[str, bool, dict[str, int]]]:
    found = [
        (step, side, number, bool(its.counts[at]), its.of_step(at))
        for side, recordings in enumerate((base, candidate))
        for number, its in enumerate(recordings, 1)
        for at, step in enumerate(its.sample.steps)
    ]
    for step, side, number, counts, parts in sorted(found, key=lambda row: row[:3]):
        of = f"{number}" if len((base, candidate)[side]) > 1 else ""
        yield f"{step} {('base', 'cand.')[side]} {of}".rstrip(), counts, parts


def _verdict(step: StepChange, margin_pct: float, sides: Sequence[Side]) -> tuple[Verdict, str]:
    low, high = step.low_pct, step.high_pct
    for name, side in zip(("base", "candidate"), sides, strict=True):
        if not any(its.sample.steps for its in side):
            return "inconclusive", f"the {name} has no whole steps: {side[0].sample.lacking}"
    few = min(step.base_steps, step.candidate_steps)
    if low is None or high is None or few < _ENOUGH:
        return "inconclusive", f"needs {_ENOUGH} steps on each side, has {few}"
    if low > 0:
        return "slower", f"by at least {low:.1f} %"
    if high < 0:
        return "faster", f"by at least {-high:.1f} %"
    if -margin_pct <= low and high <= margin_pct:
        return "same", f"a change of more than {margin_pct:g} % is ruled out"
    return "inconclusive", f"a change of {margin_pct:g} % is neither shown nor ruled out"
