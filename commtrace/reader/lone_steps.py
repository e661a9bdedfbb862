"""Steps that some ranks have and others do not, or more of, as where one steps an optimizer alone.

A learner's steps, say, of which dozens follow one exchange with its actors, or those on shards of
unlike lengths between two averages: they divide a rank's own time, and not the run's, in which the
ranks exchange once in a round. Where most of them communicate nothing the run is one without steps.
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
_ALIKE = 0.9  # of as many: of some a window lacks the first or the last


def without_lone_steps(parts: Sequence[RankTrace]) -> tuple[list[RankTrace], list[Note]]:
    """The parts, without the profiler's steps if they are no steps of the run; a note that says so.

    What optimizers and labels mark stays.
    """
    marked = {part.rank: distinct(_own_numbers(part)).size for part in parts}
    have = [rank for rank, count in marked.items() if count]
    fewest, most = min(marked.values(), default=0), max(marked.values(), default=0)
    if fewest >= _ALIKE * most or not all(_alone(part) for part in parts if part.rank in have):
        return list(parts), []
    who = (
        f"the ranks marked {fewest} to {most} steps"
        if fewest
        else f"only {numbered('rank', have)} of {len(marked)} marked steps"
    )
    message = (
        f"{who}, most of which communicate nothing: what is analysed is the run as a whole. Call "
        "commtrace.step(), or prof.step(), once in each round on every rank"
    )
    return [_without(part) for part in parts], [Note("lone-steps", message)]


def _own(part: RankTrace) -> Bool:
    """Which rows of ``steps`` are the profiler's own."""
    steps: Any = part.columns["steps"]
    own: Bool = (steps["label"].codes < 0) & (steps["step"] != NULL)
    return own


def _own_numbers(part: RankTrace) -> Any:
    steps: Any = part.columns["steps"]
    return steps["step"][_own(part)]


def _alone(part: RankTrace) -> bool:
    """Whether a rank communicates, but in less than half of its steps."""
    operations: Any = part.columns["collectives"]
    marked = distinct(_own_numbers(part))
    communicating = among(marked, operations["step"]).sum()
    return len(operations["step"]) > 0 and bool(communicating < _MOSTLY * marked.size)


def _without(part: RankTrace) -> RankTrace:
    kept = np.flatnonzero(~_own(part))
    steps: Any = part.columns["steps"]
    others = {name: values.take(kept) for name, values in steps.items()}
    without = structs.replace(part, columns={**part.columns, "steps": others})
    return with_steps(without, lambda step: np.full(len(step), NULL))
