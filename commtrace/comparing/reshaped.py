"""Which work of two sides corresponds, where shapes differ or only one side has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from commtrace.comparing.work import Work

__all__ = ["comparable", "reshaped"]

Times = Mapping[Work, tuple[float, float]]
"""How often a step has what, and how long it takes."""


def comparable(before: Times, after: Times) -> tuple[Times, Times]:
    """The same by name alone where only one side knows the shapes.

    >>> one, other = Work("mm", None), Work("mm", "[[9,4]]")
    >>> comparable({one: (1.0, 2.0)}, {other: (1.0, 3.0)})[1] == {one: (1.0, 3.0)}
    True
    """
    sides = [_by_name(side) for side in (before, after)]
    unknown = {
        name
        for name in sides[0].keys() & sides[1].keys()
        if any(all(its.shape is None for its in side[name]) for side in sides)
    }
    return _without_shapes(before, unknown), _without_shapes(after, unknown)


def reshaped(before: Times, after: Times) -> dict[Work, Work]:
    """Which work of the base is the candidate's with another shape.

    Of one name each has as many shapes that the other lacks, and each of these as often: they
    correspond in the order in which they first run.

    >>> one, other = Work("mm", "[[8,4]]"), Work("mm", "[[9,4]]")
    >>> reshaped({one: (2.0, 1.0)}, {other: (2.0, 3.0)}) == {one: other}
    True
    >>> reshaped({one: (2.0, 1.0)}, {other: (1.0, 3.0)})
    {}
    """
    gone = _by_name([its for its in before if its.shape and its not in after])
    new = _by_name([its for its in after if its.shape and its not in before])
    return {
        was: now
        for name in gone.keys() & new.keys()
        if _counts(before, gone[name]) == _counts(after, new[name])
        for was, now in zip(gone[name], new[name], strict=True)
    }


def _by_name(its: Times | Sequence[Work]) -> dict[str, list[Work]]:
    found: dict[str, list[Work]] = defaultdict(list)
    for work in its:
        found[work.name].append(work)
    return found


def _counts(its: Times, some: Sequence[Work]) -> list[float]:
    return [round(its[work][0], 3) for work in some]


def _without_shapes(its: Times, names: set[str]) -> Times:
    sums: dict[Work, tuple[float, float]] = {}
    for work, (count, time) in its.items():
        key = work._replace(shape=None) if work.name in names else work
        so_far = sums.get(key, (0.0, 0.0))
        sums[key] = so_far[0] + count, so_far[1] + time
    return sums
