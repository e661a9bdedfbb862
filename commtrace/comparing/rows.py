"""The rows of a comparison's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.comparing.changes import Change
from commtrace.comparing.kinds import Operation, resized
from commtrace.comparing.reshaped import comparable, reshaped
from commtrace.comparing.sample import Own
from commtrace.comparing.tables import RANKS
from commtrace.comparing.work import Work, counts, ranks, work

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Resized",
    "Steps",
    "of_change",
    "of_operations",
    "of_ranks",
    "of_sizes",
    "of_work",
]

_MOSTLY = 0.5  # of a change in compute: the kernel with as much of it is named

Steps = Sequence[tuple["Measures", tuple[int, ...]]]
"""The recordings of one side, and the steps of each that count."""

_Pair = tuple[float, float]


Resized = Mapping[Operation, Operation]
"""Kinds of operations of the base, and what these are in the candidate."""


def of_change(change: Change, base: Steps, candidate: Steps, sizes: Resized) -> dict[str, Any]:
    """A row of CHANGES."""
    what = change.what
    operation = Operation(None, None, None, None) if isinstance(what, Own) else what.operation
    return {
        "kind": what.kind,
        "rank": change.ranks[0] if change.ranks else None,
        "cause": what.cause if isinstance(what, Own) else None,
        **_columns(operation, sizes),
        "kernel": _kernel(change, base, candidate) if what.kind == "compute" else None,
        "place": None if change.place is None else _spoken(change.place),
        "base_ns": round(change.base_ns),
        "candidate_ns": round(change.candidate_ns),
        "change_ns": round(change.step.change),
        "low_ns": round(change.step.low),
        "high_ns": round(change.step.high),
    }


def _spoken(operation: Operation) -> str:
    name = operation.op or "communication"
    return f"{name} of {operation.dimension}" if operation.dimension else name


def _kernel(change: Change, base: Steps, candidate: Steps) -> str | None:
    """The kernel or operator that most of a change in compute is in."""
    before, after = (_by_name(_work(side, change.ranks)) for side in (base, candidate))
    more = change.candidate_ns - change.base_ns
    sums = {
        name: (after.get(name, (0.0, 0.0))[1] - before.get(name, (0.0, 0.0))[1]) * more
        for name in {**before, **after}
    }
    most = max(sums, key=lambda name: sums[name], default=None)
    return most if most is not None and sums[most] >= _MOSTLY * more**2 > 0 else None


def _columns(operation: Operation, sizes: Resized) -> dict[str, Any]:
    before = next((kind for kind, now in sizes.items() if now == operation), None)
    return {**operation._asdict(), "base_size_bytes": before.size_bytes if before else None}


def of_sizes(base: Steps, candidate: Steps) -> Resized:
    """The kinds of operations that have another size now."""
    means = [_means([counts(*its) for its in side]) for side in (base, candidate)]
    before, after = ({kind: round(its[0], 3) for kind, its in mean.items()} for mean in means)
    return resized(before, after)


def of_operations(base: Steps, candidate: Steps, sizes: Resized) -> list[dict[str, Any]]:
    """The rows of COUNTS, largest change first."""
    before, after = (_means([counts(*its) for its in side]) for side in (base, candidate))
    before = {sizes.get(kind, kind): pair for kind, pair in before.items()}
    both = _both(before, after)
    return _largest_first([{**_columns(kind, sizes), **pair} for kind, pair in both])


def of_work(base: Steps, candidate: Steps) -> list[dict[str, Any]]:
    """The rows of WORK, largest change first."""
    before, after = comparable(*(_work(side, ()) for side in (base, candidate)))
    was = reshaped(before, after)
    before = {was.get(its, its): pair for its, pair in before.items()}
    base_shape = {now: its.shape for its, now in was.items()}
    return _largest_first(
        [
            {
                "kernel": its.name,
                "shape": its.shape,
                "base_shape": base_shape.get(its),
                **pair,
            }
            for its, pair in _both(before, after)
        ]
    )


def of_ranks(base: Steps, candidate: Steps) -> list[dict[str, Any]]:
    """The rows of RANKS."""
    found = {
        name: [ranks(*its) for its in side]
        for name, side in (("base", base), ("candidate", candidate))
    }
    rows = []
    for rank in sorted({rank for side in found.values() for its in side for rank in its}):
        row: dict[str, Any] = {"rank": rank}
        for column in RANKS.columns[1:]:
            side, _, what = column.name.partition("_")
            values = [its[rank][what] for its in found[side] if what in its.get(rank, ())]
            row[column.name] = round(float(np.mean(values))) if values else None
        rows.append(row)
    return rows


def _work(side: Steps, of: tuple[int, ...]) -> dict[Work, _Pair]:
    """What some ranks run in a step, all if none are named: the mean rank's."""
    found = []
    for run, steps in side:
        mine = of or tuple(run.rows("ranks").ints("rank").tolist())
        sums: dict[Work, _Pair] = {}
        for (rank, its), (count, time) in work(run, steps).items():
            if rank in mine:
                so_far = sums.get(its, (0.0, 0.0))
                sums[its] = so_far[0] + count / len(mine), so_far[1] + time / len(mine)
        found.append(sums)
    return _means(found)


def _by_name(its: Mapping[Work, _Pair]) -> dict[str, _Pair]:
    """The same, whatever its shape."""
    sums: dict[str, _Pair] = {}
    for (name, _), (count, time) in its.items():
        so_far = sums.get(name, (0.0, 0.0))
        sums[name] = so_far[0] + count, so_far[1] + time
    return sums


def _means(side: Sequence[Mapping[Any, _Pair]]) -> dict[Any, _Pair]:
    """The means over a side's recordings; what one lacks is nothing in it."""
    found: dict[Any, _Pair] = {}
    for its in side:
        for key, (count, time) in its.items():
            so_far = found.get(key, (0.0, 0.0))
            found[key] = so_far[0] + count / len(side), so_far[1] + time / len(side)
    return found


def _both(
    base: Mapping[Any, _Pair], candidate: Mapping[Any, _Pair]
) -> list[tuple[Any, dict[str, Any]]]:
    nothing = (0.0, 0.0)
    return [
        (
            key,
            {
                "base_count": round(base.get(key, nothing)[0], 3),
                "candidate_count": round(candidate.get(key, nothing)[0], 3),
                "base_ns": round(base.get(key, nothing)[1]),
                "candidate_ns": round(candidate.get(key, nothing)[1]),
            },
        )
        for key in {**base, **candidate}
    ]


def _largest_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -abs(row["candidate_ns"] - row["base_ns"]))
