"""What a step's change is made of: the critical path before and after, and who did more.

Of what ranks do together the time on the path counts. Of what they do by themselves the path
moves between ranks by chance, so that only as much counts as some rank on it really does
more: the rest was hidden behind others before, or is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from commtrace.arrays import Bool, Float64
from commtrace.comparing.estimates import Estimate, difference
from commtrace.comparing.kinds import Operation
from commtrace.comparing.published import as_others, noise
from commtrace.comparing.sample import Own, Sample, Shared

__all__ = ["Change", "Recording", "Side", "changes"]

_ALIKE = 0.25  # of the rank with most of it: ranks with more have a part in it
_PLACE = 0.5  # of a rank's change: what comes before one kind of operation is its place
_FLOOR = 0.01  # of the step: less cannot be told from nothing by one recording a side
_TESTED = 0.005  # of the step: what is less in both sides is not tested


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording, and a flag for each of its steps that counts.

    ``foreign`` is the share of the cores that other processes took meanwhile.
    """

    sample: Sample
    counts: Bool
    foreign: float = 0.0

    @property
    def step_ns(self) -> Float64:
        """How long each step is that counts."""
        return self._counting(self.sample.step_ns)

    def path(self, key: Own | Shared) -> Float64:
        """The time on the critical path, of any rank, in each step that counts."""
        times = (time for (its, _), time in self.sample.path_ns.items() if its == key)
        return self._counting(sum(times, np.zeros(self.counts.size)))

    def on_path(self, key: Own, rank: int) -> float:
        """The mean of a rank's time on the critical path."""
        return float(self._counting(self.sample.path_ns.get((key, rank))).mean())

    def own(self, key: Own, rank: int) -> Float64:
        """What a rank did by itself in each step that counts."""
        return self._counting(self.sample.own_ns.get((key, rank)))

    def _counting(self, times: object) -> Float64:
        if times is None:
            return np.zeros(int(self.counts.sum()))
        return np.asarray(times, dtype=np.float64)[self.counts]


Side = Sequence[Recording]


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
class _Part:
    """A row in the making: its times in the steps of both sides, and its part of the change.

    ``others`` is the mean of what other ranks have of it, on both sides.
    """

    what: Own | Shared
    ranks: tuple[int, ...]
    base: list[Float64]
    candidate: list[Float64]
    change: float
    others: tuple[float, float] | None = None

    @property
    def base_ns(self) -> float:
        return _mean(self.base)

    @property
    def candidate_ns(self) -> float:
        return _mean(self.candidate)


def changes(base: Side, candidate: Side) -> list[Change]:
    """All parts of the change, largest first; what they do not sum to is its rest."""
    keys = sorted({key for its in (*base, *candidate) for key, _ in its.sample.path_ns}, key=str)
    ranks = {key: _ranks(base, candidate, key) for key in keys if isinstance(key, Own)}
    parts: list[_Part] = []
    unexplained = 0.0
    for key in filter(ranks.get, ranks):
        found, left = _by_rank(base, candidate, key, ranks[key])
        parts += found
        unexplained += left
    parts = _less_what_was_hidden(parts, unexplained)
    parts += [_joint(base, candidate, key) for key in keys if not ranks.get(key)]
    step_ns = min(_mean([its.step_ns for its in side]) for side in (base, candidate))
    tests = sum(max(its.base_ns, its.candidate_ns) >= _TESTED * step_ns for its in parts)
    rows = [_change(base, candidate, part, max(tests, 1), step_ns) for part in parts]
    return sorted(rows, key=lambda row: -abs(row.step.change))


def _ranks(base: Side, candidate: Side, key: Own) -> list[int]:
    """The ranks that do it by themselves on either side."""
    return sorted({rank for its in (*base, *candidate) for own, rank in its.sample.own_ns if own == key})


def _joint(base: Side, candidate: Side, key: Own | Shared) -> _Part:
    series = [[its.path(key) for its in side] for side in (base, candidate)]
    return _Part(key, (), *series, _mean(series[1]) - _mean(series[0]))


def _by_rank(
    base: Side, candidate: Side, key: Own, ranks: list[int]
) -> tuple[list[_Part], float]:
    """Who did more of it, and what of the path's change nobody's work explains."""
    path = _mean([its.path(key) for its in candidate]) - _mean([its.path(key) for its in base])
    own = {
        rank: [[its.own(key, rank) for its in side] for side in (base, candidate)] for rank in ranks
    }
    more = {rank: _mean(series[1]) - _mean(series[0]) for rank, series in own.items()}
    # No more than was there: on the path of that side which has more of it.
    side, sign = (candidate, 1) if path > 0 else (base, -1)
    there = {rank: float(np.mean([its.on_path(key, rank) for its in side])) for rank in ranks}
    weight = {rank: min(max(sign * more[rank], 0.0), there[rank]) for rank in ranks}
    total = sum(weight.values())
    explained = min(abs(path), total)
    if not explained:
        return [], path
    most = max(weight.values())
    who = [rank for rank in ranks if weight[rank] >= _ALIKE * most]
    share = sign * explained / sum(weight[rank] for rank in who)
    if len(who) == len(ranks) > 1:
        series = [
            [np.mean([own[rank][at][number] for rank in ranks], axis=0) for number in range(len(its))]
            for at, its in enumerate((base, candidate))
        ]
        return [_Part(key, (), *series, sign * explained)], path - sign * explained
    parts = [
        _Part(key, (rank,), *own[rank], share * weight[rank], _others(own, who)) for rank in who
    ]
    return parts, path - sign * explained


def _others(
    own: Mapping[int, list[list[Float64]]], who: list[int]
) -> tuple[float, float] | None:
    rest = [series for rank, series in own.items() if rank not in who]
    base, candidate = (float(np.mean([_mean(its[at]) for its in rest] or [0])) for at in (0, 1))
    return (base, candidate) if rest else None


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
    foreign = [[its.foreign for its in side] for side in (base, candidate)]
    of_kind = {part.what.kind: (part.base_ns, part.candidate_ns)}
    least = noise(of_kind, foreign, _FLOOR * step_ns)
    if part.others is not None:
        least = as_others(least, (part.base_ns, part.candidate_ns), part.others)
    its = difference(part.base, part.candidate, least, tests)
    return Change(
        part.what,
        part.ranks,
        _place(base, candidate, part),
        part.base_ns,
        part.candidate_ns,
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
    more = part.candidate_ns - part.base_ns
    most = max(sums, key=lambda operation: sums[operation] * more, default=None)
    if most is None or sums[most] * more < _PLACE * more**2:
        return None
    return most


def _mean(series: list[Float64]) -> float:
    return float(np.mean([steps.mean() for steps in series]))
