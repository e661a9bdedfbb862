"""Single ranks and sets of them tried by replay: the fewest without whose work a run is shorter.

The steps are as long as the critical path, so that an edit saves at most what it takes from
that: a rank that could save but little is not replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, codes, distinct, first_rows
from commtrace.causal.blame.alone import Alone
from commtrace.causal.blame.kind import Kind, Made
from commtrace.causal.blame.lateness import Lateness
from commtrace.causal.blame.sets import known_sets, sizes
from commtrace.causal.chance import above_zero
from commtrace.causal.edits.bounds import at_most, path_to_end, saves_at_most
from commtrace.causal.replay.graph import Change, changed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work
from commtrace.quantiles import medians, quantiles

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Search",
    "Suspects",
    "least_noise_ns",
]

_OTHERS = 0.25  # of what they save: what any other rank may save, or they are not the ones
_AS_MUCH = 0.9  # of the most that some set saves: then the smallest such set
_CHANCE = 0.01
_FEW = 8  # ranks, each of which is replayed however little it could save
_FEW_SETS = 3  # are replayed without asking another critical path
_FAR_MORE = 1.25  # times what the one saves alone
_BY_TURNS = 0.25  # of the steps
_AS_LATE, _NEARLY = 0.5, 0.75  # of what one is late: its group, another
_MOSTLY = 0.5  # of the calls
_APART = 0.25  # of what they do more than the mean of the others: from who of these does most
_NOISE_CPU_NS = 2_000_000
_NOISE_GPU_NS = 50_000
_HIDE = 3  # ranks: of two one is late beside the other


class Suspects(Struct, frozen=True, eq=False):
    """Ranks that save ``steps_ns`` if they work as is typical.

    Any other saves ``others_ns`` at most. ``edit`` is what that changes of the lags that they were
    tried on; ``made`` says what was made typical: all their work in each step, only what they
    surely do longer (``sure``), or the median of all steps; or that what they do more is ``shared``
    by all stages of a pipeline.
    """

    ranks: tuple[int, ...]
    steps_ns: Int64
    others_ns: int
    edit: Change
    made: Made


def least_noise_ns(run: Measures) -> int:
    """By how much a step is never sure to be longer."""
    return _NOISE_CPU_NS if run_graph(run).calls.on_cpu.any() else _NOISE_GPU_NS


class Search:
    """One kind of edit, tried on single ranks and on sets of them."""

    def __init__(self, left: list[int], least: float, kind: Kind) -> None:
        self.run, self.left, self.least, self.kind = kind.run, left, least, kind
        own = kind.work.own_ns
        self.on_path = at_most(kind.run, kind.path, own, np.broadcast_to(0.0, own.shape))
        each = at_most(kind.run, kind.path, own, kind.wanted_ns)
        most = {one: max(float(each[one]), 0.0) for one in left}
        asked = [one for one in left if len(left) <= _FEW or most[one] > _OTHERS * least]
        self.alone = Alone(asked, most, lambda some: kind.saved([(one,) for one in some]))

    def single(self) -> Suspects | None:
        """The one rank that saves enough, if no other does, nor hides behind it."""
        if (best := self._best()) is None:
            return None
        ranks, steps = best
        if not self._fits(ranks, steps) or self._hides(ranks[0], int(steps.sum())):
            return None
        return self._suspects(ranks, steps)

    def apart(self) -> Suspects | None:
        """The one that saves most, though others save by themselves, too: at other places.

        Then they save in sum what they do together, and each in most steps.
        """
        if (best := self._best()) is None:
            return None
        ranks, steps = best
        some = self.alone.beyond(_OTHERS * float(steps.sum()))
        each = self.alone.steps(some)
        late = np.flatnonzero(each.sum(axis=0) > _OTHERS * steps.sum())
        each = each[:, late]
        if late.size < 2 or (medians(each, axis=0) <= least_noise_ns(self.run)).any():
            return None
        together = self.kind.saved([tuple(some[at] for at in late)])
        return self._suspects(ranks, steps) if together.sum() >= _AS_MUCH * each.sum() else None

    def _best(self) -> tuple[tuple[int, ...], Int64] | None:
        """The rank that saves most by itself, if enough, and what each step is shorter then."""
        if not (some := self.alone.beyond(self.least)):
            return None
        each = self.alone.steps(some)
        best = int(each.sum(axis=0).argmax())
        steps = each[:, best]
        return ((some[best],), steps) if steps.sum() >= self.least else None

    def _hides(self, rank: int, alone_ns: int) -> bool:
        """Whether others are as late, and save far more together with it.

        Another beside it, or its host or a group of its, all late.
        """
        late = Lateness.of(self.kind)
        if late.ranks.size < _HIDE:
            return False
        known = (its for its in known_sets(self.run, late.ranks.tolist()) if rank in its)
        sets = [
            *self._beside(rank, late),
            *(its for its in known if late.all_as(rank, its, _AS_LATE)),
        ]
        return any(self._save_far_more(ranks, rank, alone_ns) for ranks in dict.fromkeys(sets))

    def _beside(self, rank: int, late: Lateness) -> Iterator[tuple[int, ...]]:
        """A rank and another with which it is the last by turns, or of three one nearly as late."""
        other = next((one for one in self._ordered() if one != rank), None)
        if other is None:
            return
        pair = min(rank, other), max(rank, other)
        of_three = late.ranks.size == _HIDE  # what is typical is half of it the other's
        by_turns = late.later(other, rank) > _BY_TURNS
        if by_turns or (of_three and late.all_as(rank, pair, _NEARLY)):
            yield pair

    def _save_far_more(self, ranks: tuple[int, ...], rank: int, alone_ns: int) -> bool:
        together = self.kind.saved([ranks])[:, 0]
        more = together - self.alone.steps([rank])[:, 0]
        always = bool((more > 2 * least_noise_ns(self.run)).all())  # no chance, however few
        sure = always or above_zero(more.astype(np.float64)) < _CHANCE
        return sure and bool(together.sum() >= _FAR_MORE * alone_ns)

    def several(self) -> Suspects | None:
        """The fewest that save nearly as much as any set of them does."""
        nested = self._ordered()
        counts = list(sizes((len(self.left) + 1) // 2))  # of three two
        sets = [tuple(sorted(nested[:count])) for count in counts]
        sets = [its for its in sets if 2 * len(its) <= len(self.left) or self._do_alike(its)]
        sets += known_sets(self.run, self.left)
        sets = [its for its in dict.fromkeys(sets) if self.on_path[list(its)].sum() >= self.least]
        tried = self._tried(sets)
        fits = {ranks: tried[ranks] for ranks in sets if ranks in tried}
        fits = {ranks: steps for ranks, steps in fits.items() if self._fits(ranks, steps)}
        if not fits:
            return None
        enough = _AS_MUCH * max(int(steps.sum()) for steps in fits.values())
        ranks = min((its for its, steps in fits.items() if steps.sum() >= enough), key=len)
        size, found = len(ranks), (ranks, fits[ranks])
        if size in counts and set(ranks) == set(nested[:size]):
            found = self._fewer(nested, counts, size, enough) or found
        if first := self._first_of(*found):
            return first
        return None if self._are_as_others(found[0]) else self._suspects(*found)

    def _are_as_others(self, ranks: tuple[int, ...]) -> bool:
        """Whether another does as much where they do most beyond what is wanted.

        Some of several actors, say, beside a learner that does nothing there.
        """
        calls, own_ns = run_graph(self.run).calls, self.kind.work.own_ns.sum(axis=1)
        mine = np.isin(calls.rank, ranks)
        more = own_ns[mine] - np.nan_to_num(self.kind.wanted(ranks, mine)).sum(axis=1)
        there = calls.place == int(np.bincount(calls.place[mine], more.clip(min=0)).argmax())
        each, code = np.unique(calls.rank[there], return_inverse=True)
        usual = quantiles(code, own_ns[there], 50, each.size)
        theirs = np.isin(each, ranks)
        if theirs.all():
            return False
        apart, mean = usual[theirs].min() - usual[~theirs].max(), usual[~theirs].mean()
        return bool(apart < _APART * (usual[theirs].mean() - mean))

    def _do_alike(self, ranks: tuple[int, ...]) -> bool:
        """Whether the rest mostly make the same calls: else these are a kind, and no majority."""
        calls = run_graph(self.run).calls
        mine = np.isin(calls.rank, ranks)
        return bool(np.isin(calls.in_place[mine], calls.in_place[~mine]).mean() > _MOSTLY)

    def _first_of(self, ranks: tuple[int, ...], steps: Int64) -> Suspects | None:
        """The one that saves most, if they save in sum and in every step what they do together.

        Then none hides another: each is found by itself, on top of those before it.
        """
        if not set(ranks) <= set(self.alone.asked):
            return None
        alone = self.alone.steps(ranks)
        chance = max(above_zero(each.astype(np.float64)) for each in alone.T)
        totals = alone.sum(axis=0)
        most = int(totals.argmax())
        if chance * len(self.left) >= _CHANCE or totals[most] < self.least:
            return None
        if totals.sum() < _AS_MUCH * int(steps.sum()):
            return None
        return self._suspects((ranks[most],), alone[:, most])

    def _fewer(
        self, nested: list[int], counts: list[int], size: int, enough: float
    ) -> tuple[tuple[int, ...], Int64] | None:
        """Between two sizes that were tried, the fewest that are enough."""
        found, low = None, max((one for one in counts if one < size), default=1)
        while size - low > 1:
            middle = (low + size) // 2
            ranks = tuple(sorted(nested[:middle]))
            steps = self.kind.saved([ranks])[:, 0]
            if self._fits(ranks, steps) and steps.sum() >= enough:
                found, size = (ranks, steps), middle
            else:
                low = middle
        return found

    def _tried(self, sets: list[tuple[int, ...]]) -> dict[tuple[int, ...], Int64]:
        """What each step saves with those of the sets that take enough from critical paths.

        From that of the run, and of many sets from that without the most of them.
        """
        tried, paths = dict[tuple[int, ...], Int64](), [self.kind.path]
        if len(sets) > _FEW_SETS:
            most = max(sets, key=lambda ranks: float(self.on_path[list(ranks)].sum()))
            paths.append(path_to_end(self.run, changed(self.kind.lag_ns, self.kind.change(most))))
            tried[most] = self.kind.path.step_ns - paths[-1].step_ns
        on_paths = distinct(np.concatenate([path.own for path in paths]))
        asked = [
            ranks
            for ranks in sets
            if ranks not in tried
            and saves_at_most(paths, self.kind.change(ranks, on_paths)) >= self.least
        ]
        return tried | dict(zip(asked, self.kind.saved(asked).T, strict=True))

    def _fits(self, ranks: tuple[int, ...], steps: Int64) -> bool:
        """Whether they save enough, and no other rank does."""
        total = int(steps.sum())
        most = _OTHERS * total
        rest = set(self.left).difference(ranks)
        return total >= self.least and self.alone.most(rest, most) <= most

    def _suspects(self, ranks: tuple[int, ...], steps: Int64) -> Suspects:
        others_ns = round(self.alone.most(set(self.left).difference(ranks)))
        return Suspects(ranks, steps, others_ns, self.kind.change(ranks), self.kind.made)

    def _ordered(self) -> list[int]:
        """The ranks, those with the most excess first, of all places at which they have any.

        Of those without any, those that do most.
        """
        calls, work = run_graph(self.run).calls, own_work(self.run)
        excess = np.nan_to_num(work.own_ns - work.mean_ns).sum(axis=1)
        there = codes(calls.rank, calls.place)
        rank, at_place = calls.rank[first_rows(there)], np.bincount(there, excess)
        beyond, in_all = (np.bincount(rank, its) for its in (at_place.clip(min=0), at_place))
        return sorted(self.left, key=lambda rank: (-beyond[rank], -in_all[rank]))
