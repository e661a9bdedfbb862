"""Steps that some ranks have and others do not, as where one alone steps an optimizer.

A learner's steps, say, of which dozens follow one exchange with its actors: they divide its own
time, and not the run's, in which the ranks exchange once in a round. Where most of them communicate
nothing the run is one without steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import structs

from commtrace.arrays import NULL, Bool, among, distinct
from commtrace.diagnosis import Note
from commtrace.reader.recordings import with_steps
from commtrace.trace import RankTrace
from commtrace.units import numbered

__all__ = ["without_lone_steps"]

_MOSTLY = 0.5


def without_lone_steps(parts: Sequence[RankTrace]) -> tuple[list[RankTrace], list[Note]]:
    """The parts, without the profiler's steps if they are no steps of the run; a note that says so.

    What optimizers and labels mark stays.
    """
    have = {part.rank for part in parts if _own(part).any()}
    lack = {part.rank for part in parts} - have
    if not have or not lack or not all(_alone(part) for part in parts if part.rank in have):
        return list(parts), []
    message = (
        f"only {numbered('rank', have)} of {len(have) + len(lack)} marked steps, most of which "
        "communicate nothing: what is analysed is the run as a whole. Call commtrace.step(), or "
        "prof.step(), once in each round on every rank"
    )
    return [_without(part) for part in parts], [Note("lone-steps", message)]


def _own(part: RankTrace) -> Bool:
    """Which rows of ``steps`` are the profiler's own."""
    steps: Any = part.columns["steps"]
    own: Bool = (steps["label"].codes < 0) & (steps["step"] != NULL)
    return own


def _alone(part: RankTrace) -> bool:
    """Whether a rank communicates, but in less than half of its steps."""
    steps: Any = part.columns["steps"]
    operations: Any = part.columns["collectives"]
    marked = distinct(steps["step"][_own(part)])
    communicating = among(marked, operations["step"]).sum()
    return len(operations["step"]) > 0 and bool(communicating < _MOSTLY * marked.size)


def _without(part: RankTrace) -> RankTrace:
    kept = np.flatnonzero(~_own(part))
    steps: Any = part.columns["steps"]
    others = {name: values.take(kept) for name, values in steps.items()}
    without = structs.replace(part, columns={**part.columns, "steps": others})
    return with_steps(without, lambda step: np.full(len(step), NULL))
