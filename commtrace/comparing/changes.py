"""What a step's change is made of: the critical path before and after, and who did more.

Of what ranks do together the time on the path counts. Of what they do by themselves the path
moves between ranks by chance, so that only as much counts as some rank on it really does
more: the rest was hidden behind others before, or is now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from commtrace.arrays import Float64
from commtrace.comparing.estimates import Estimate, difference
from commtrace.comparing.kinds import Operation
from commtrace.comparing.published import as_others, of_part
from commtrace.comparing.sample import Own, Shared
from commtrace.comparing.sides import Side, in_turn

__all__ = ["Change", "changes"]

_ALIKE = 0.25  # of the rank with most of it: ranks with more have a part in it
_PLACE = 0.5  # of a rank's change: what comes before one kind of operation is its place
_FLOOR = 0.01  # of the step: less cannot be told from nothing by one recording a side
_TESTED = 0.005  # of the step: what is less in both sides is not tested


@dataclass(frozen=True)
class Change:
    """One part of a step's change, in ns per step.

    Of ``what`` by ``ranks``, of all ranks or of none in particular if there are none, a step has
    ``base_ns`` and ``candidate_ns``; ``step`` is what it is longer by for that. ``place`` is the
    operation before which most of it is, None if there is no single one.
    """

    what: Own | Shared
    ranks: tuple[int, ...]
    place: Operation | None
    base_ns: float
    candidate_ns: float
    step: Estimate


@dataclass(frozen=True, eq=False)
class _Times:
    """A time in the steps of every recording of both sides."""

    base: list[Float64]
    candidate: list[Float64]

    @property
    def means(self) -> tuple[float, float]:
        """Of both sides: every recording counts the same."""
        return _mean(self.base), _mean(self.candidate)

    @property
    def more(self) -> float:
        """What the candidate has more of it."""
        return self.means[1] - self.means[0]


@dataclass(frozen=True, eq=False)
class _Part:
    """A row in the making: its times, and what of the step's change it is.

    ``others`` is the mean of what other ranks have of it, on both sides.
    """

    what: Own | Shared
    ranks: tuple[int, ...]
    times: _Times
    change: float
    others: tuple[float, float] | None = None


def changes(base: Side, candidate: Side) -> list[Change]:
    """All parts of the change, largest first; what they do not sum to is its rest."""
    keys = sorted({key for its in (*base, *candidate) for key, _ in its.sample.path_ns}, key=str)
    ranks = {key: _ranks(base, candidate, key) for key in keys if isinstance(key, Own)}
    parts: list[_Part] = []
    unexplained = 0.0
    for own, its in ranks.items():
        if its:
            found, left = _by_rank(base, candidate, own, its)
            parts += found
            unexplained += left
    parts = _less_what_was_hidden(parts, unexplained)
    for key in keys:
        if isinstance(key, Shared) or not ranks[key]:
            times = _on_path(base, candidate, key)
            parts.append(_Part(key, (), times, times.more))
    step_ns = min(_mean([its.step_ns for its in side]) for side in (base, candidate))
    tests = sum(max(part.times.means) >= _TESTED * step_ns for part in parts)
    rows = [_change(base, candidate, part, max(tests, 1), step_ns) for part in parts]
    return sorted(rows, key=lambda row: -abs(row.step.change))


def _ranks(base: Side, candidate: Side, key: Own) -> list[int]:
    """The ranks that do it by themselves on either side."""
    keys = {its for recording in (*base, *candidate) for its in recording.sample.own_ns}
    return sorted(rank for own, rank in keys if own == key)


def _on_path(base: Side, candidate: Side, key: Own | Shared) -> _Times:
    return _Times([its.path(key) for its in base], [its.path(key) for its in candidate])


def _by_rank(base: Side, candidate: Side, key: Own, ranks: list[int]) -> tuple[list[_Part], float]:
    """Who did more of it, and what of the path's change nobody's work explains."""
    path = _on_path(base, candidate, key).more
    own = {
        rank: _Times(
            [its.own(key, rank) for its in base], [its.own(key, rank) for its in candidate]
        )
        for rank in ranks
    }
    # No more than was there: on the path of that side which has more of it.
    side, sign = (candidate, 1) if path > 0 else (base, -1)
    there = {rank: float(np.mean([its.on_path(key, rank) for its in side])) for rank in ranks}
    weight = {rank: min(max(sign * own[rank].more, 0.0), there[rank]) for rank in ranks}
    explained = sign * min(abs(path), sum(weight.values()))
    if not explained:
        return [], path
    most = max(weight.values())
    who = [rank for rank in ranks if weight[rank] >= _ALIKE * most]
    if len(who) == len(ranks) > 1:
        return [_Part(key, (), _mean_rank(list(own.values())), explained)], path - explained
    share = explained / sum(weight[rank] for rank in who)
    rest = [own[rank] for rank in ranks if rank not in who]
    others = _mean_rank(rest).means if rest else None
    parts = [_Part(key, (rank,), own[rank], share * weight[rank], others) for rank in who]
    return parts, path - explained


def _mean_rank(times: list[_Times]) -> _Times:
    base = [np.mean(its, axis=0) for its in zip(*(one.base for one in times), strict=True)]
    after = [np.mean(its, axis=0) for its in zip(*(one.candidate for one in times), strict=True)]
    return _Times(base, after)


def _less_what_was_hidden(parts: list[_Part], unexplained: float) -> list[_Part]:
    """What the path has less of though nobody does less was hidden time that is now used up.

    The parts of the other sign shrink by it.
    """
    against = [part for part in parts if part.change * unexplained < 0]
    total = sum(part.change for part in against)
    if not total:
        return parts
    left = max(1 + unexplained / total, 0.0)
    return [
        replace(part, change=part.change * left) if part.change * unexplained < 0 else part
        for part in parts
    ]


def _change(base: Side, candidate: Side, part: _Part, tests: int, step_ns: float) -> Change:
    times = part.times
    usual = of_part(part.what.kind, times.means, base, candidate, _FLOOR * step_ns)
    if part.others is not None:
        usual = as_others(usual, times.means, part.others)
    turn = in_turn(base, candidate)
    its = difference(times.base, times.candidate, usual, tests, in_turn=turn)
    return Change(
        part.what,
        part.ranks,
        _place(base, candidate, part),
        *times.means,
        its.times(part.change / its.change if its.change else 1.0),
    )


def _place(base: Side, candidate: Side, part: _Part) -> Operation | None:
    """Before which operation most of a rank's change is."""
    if not isinstance(part.what, Own) or len(part.ranks) != 1:
        return None
    sums: dict[Operation, float] = {}
    for sign, side in ((-1, base), (1, candidate)):
        for its in side:
            before = its.sample.before_ns.get((part.what, part.ranks[0]), {})
            for operation, time in before.items():
                sums[operation] = sums.get(operation, 0.0) + sign * time / len(side)
    more = part.times.more
    most = max(sums, key=lambda operation: sums[operation] * more, default=None)
    if most is None or sums[most] * more < _PLACE * more**2:
        return None
    return most


def _mean(series: list[Float64]) -> float:
    return float(np.mean([steps.mean() for steps in series]))
