"""A pair of sides, what is true of it, and what a comparison says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commtrace import load
from commtrace.comparing.changes import Change, changes
from commtrace.comparing.compared import step_estimate
from commtrace.comparing.estimates import Estimate
from commtrace.comparing.kinds import Operation
from commtrace.comparing.outlying import outlying
from commtrace.comparing.recorded import Recorded, recordings
from commtrace.comparing.sample import Own
from commtrace.comparing.sides import Recording, Side
from commtrace.comparing.work import counts
from commtrace.diagnosis import Diagnosis
from commtrace.measures import Measures
from commtrace.metrics.run.summary import summary

__all__ = ["Answer", "Kept", "Truth", "compared", "kept", "of_folder"]

_COUNTS = 0.1  # as in the reports: a kind of operation with so many more is named


@dataclass(frozen=True)
class Kept:
    """What a comparison needs of a recording, without its tables."""

    recording: Recording
    counts: Mapping[Operation, tuple[float, float]]


@dataclass(frozen=True)
class Truth:
    """Who or what changed, and by what each step that counts is longer, if that is known.

    ``ranks`` or ``op`` are right to be named; if neither is given all ranks' own work is. ``once``
    is whether it is in no step that counts.
    """

    ranks: tuple[int, ...] = ()
    op: str = ""
    step_ns: float | None = None
    once: bool = False


@dataclass(frozen=True)
class Answer:
    """What is said: the step's change and its rest, in ns; what is named first; of what step."""

    step: Estimate
    base_ns: float
    rest_ns: float
    first: Change | None
    more: tuple[Operation, ...]
    outlying: tuple[tuple[int | None, str | None], ...]
    same_operations: bool

    @property
    def low_pct(self) -> float:
        """The least change, as the gate has it."""
        return 100 * self.step.low / self.base_ns

    def names(self, truth: Truth) -> bool:
        """Whether it names who or what it is, beyond chance."""
        if truth.once:
            return any(rank in truth.ranks for rank, _ in self.outlying)
        if truth.op and any(its.op == truth.op for its in self.more):
            return True
        return self.first is not None and _right(self.first, truth)

    def misleads(self, truth: Truth) -> bool:
        """Whether what it names first, beyond chance, is something else."""
        return self.first is not None and not self.names(truth)


def _right(first: Change, truth: Truth) -> bool:
    if isinstance(first.what, Own):
        if truth.ranks:
            return bool(first.ranks) and set(first.ranks) <= set(truth.ranks)
        return not truth.op
    return first.what.operation.op == truth.op


def of_folder(folder: Path) -> Kept:
    """A recording's, read in this process."""
    return kept(load(folder, workers=1).measures, folder.name)


def kept(run: Measures, name: str) -> Kept:
    """A run's."""
    (its,) = recordings([Recorded(summary(run, name), run, Diagnosis())])
    return Kept(its, counts(run, its.steps))


def compared(base: list[Kept], candidate: list[Kept]) -> Answer:
    """What is said of two sides."""
    sides: tuple[Side, Side] = (
        [its.recording for its in base],
        [its.recording for its in candidate],
    )
    step = step_estimate(*sides)
    rows = changes(*sides)
    before, after = (
        {key: float(np.mean([its.counts.get(key, (0.0, 0.0))[0] for its in side])) for key in keys}
        for keys in [{key for its in (*base, *candidate) for key in its.counts}]
        for side in (base, candidate)
    )
    return Answer(
        step,
        float(np.mean([its.step_ns.mean() for its in sides[0]])),
        step.change - sum(row.step.change for row in rows),
        next((row for row in rows if row.step.low > 0), None),
        tuple(key for key in after if after[key] - before[key] > _COUNTS * after[key]),
        tuple((row["rank"], row["op"]) for row in outlying(*sides) if row["side"] == "candidate"),
        all(before[key] and after[key] for key in before),
    )
