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

from commtrace.arrays import NULL, Bool, distinct
from commtrace.diagnosis import Note
from commtrace.packed import PackedColumns, pack
from commtrace.table import Columns
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
    communicating = np.intersect1d(marked, operations["step"])
    return len(operations["step"]) > 0 and bool(communicating.size < _MOSTLY * marked.size)


def _without(part: RankTrace) -> RankTrace:
    columns = dict(part.columns)
    kept = np.flatnonzero(~_own(part))
    steps: dict[str, Any] = {**columns["steps"]}
    columns["steps"] = {name: values.take(kept) for name, values in steps.items()}
    for table, its in columns.items():
        if "step" in its:
            columns[table] = _in_none(its)
    return structs.replace(part, columns=columns, measured={})


def _in_none(its: Columns) -> Columns:
    step: Any = its["step"]
    changed = {**its, "step": np.full(len(step), NULL)}
    return pack(changed) if isinstance(its, PackedColumns) else changed
