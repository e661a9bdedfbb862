"""One way between two ranks or hosts is slower than all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, codes, rows_by, sums
from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import Evidence, Finding, too_few
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import streams
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.link_times import between_two, link_times
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted

if TYPE_CHECKING:
    from commtrace.measures import Measures

_STEADY = 0.75  # of the median: what a link limits is never much faster
_NEARLY = 0.5  # of the slowest pair's excess: a pair that is slow, too
_FEW = 0.25  # of all pairs
_WAITED = 0.25  # the same where only waits are known, which hide one another

Pair = tuple[int, int]


class SlowLink(Rule, frozen=True):
    """Transfers between two particular ranks or hosts take longer than the same between any others.

    What it detects
        Transfers between two ranks (sends, or operations of groups of two) are compared with the
        median of their own kind and size, within machines and across them separately. One pair with
        ``min_count`` transfers takes more than ``min_ratio`` times as long as the others, its first
        quartile above their third, and no other pair is half as slow, or only a few are, on GPUs,
        none of whose ranks is slow with all that it exchanges with; and it is worth
        ``min_step_share`` of the step. Between machines also all pairs of two hosts, or all that
        one host sends or receives. What gloo moves has to take as long nearly every time, as cores
        that are shared would not make it; of its messages only the wait for them is known, which
        has to be four times another pair's.

    Why it costs time
        Everybody who waits for these two ranks waits for their link.

    What to do
        Look at the cable, switch port or slot between the two; try the ranks in another
        order, so that a heavy pair does not use this link.

    Blind spots
        Groups of more than two ranks do not show their edges, as NCCL chooses the rings. A
        slow rank is slow on all its edges and is no slow link; where an end has no
        other edge in the trace, or all edges of a host are slow, the two cannot be separated, and
        the finding says so. Of two hosts alone nobody can tell what their link should give.
    """

    explains: ClassVar[tuple[str, ...]] = (
        "late-sender",
        "late-receiver",
        "exposed-communication",
    )

    min_count: int = 10
    min_ratio: float = 1.25
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding: the pairs, or the hosts, that stand out."""
        several_ranks(run)
        known = link_times(run)
        pair = codes(known.ints("sender"), known.ints("receiver"))
        count = sums(pair, known.ints("count"), pair.size)
        known = known.take(count[pair] >= self.min_count)
        level = {pair: float(np.median(its)) for pair, its in _by_pair(known).items()}
        if len(level) < 3:
            have = f"of ranks with {counted(self.min_count, 'transfer')} or more"
            raise too_few(len(level), "pair", 3, have)
        link = _standing_out(level, run, waits=bool(known.flags("on_cpu").all()))
        if link is None:
            return
        back = [pair[::-1] for pair in link.slow]
        slow = known.take(_of(known, link.slow))
        rest = known.take(~_of(known, [*link.slow, *back]))
        if not len(rest) or not _separate(slow, rest) or not _steady(slow):
            return
        ratio = float(np.median(slow.floats("relative")) / np.median(rest.floats("relative")))
        if ratio < self.min_ratio:
            return
        transfers = between_two(run)
        transfers = transfers.take(_of(transfers, link.slow))
        less = transfers.ints("transfer_ns") * (1 - 1 / ratio)
        estimate = wall_ns(transfers.ints("last_end_ns"), less)
        gain = of_transfers(run, transfers, less, estimate, self.min_step_share)
        if worth_reporting(gain.cost_ns, run, self.min_step_share):
            yield self._finding(link, transfers, slow, rest, ratio, gain, run)

    def _finding(
        self,
        link: _Link,
        transfers: Rows,
        slow: Rows,
        rest: Rows,
        ratio: float,
        gain: Saving,
        run: Measures,
    ) -> Finding:
        slow_gb_s, rest_gb_s = (float(np.median(its.floats("busbw_gb_s"))) for its in (slow, rest))
        op = transfers.coded("op")
        way = "→" if op.where(POINT_TO_POINT.__contains__).all() else "–"
        ends = link.ends.replace("→", way)
        pairs = _by_pair(rest)
        others = "the other pair" if len(pairs) == 1 else f"the other {len(pairs)} pairs"
        touching = {rank for pair in pairs for rank in pair}
        separable = link.separable and touching.issuperset(link.slow[0])
        waits = bool(slow.flags("on_cpu").all())
        took = "keep their receivers waiting" if waits else "take"
        times = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"
        mostly = op.names[np.bincount(op.codes).argmax()]
        return self.finding(
            transfers,
            summary=(
                f"{len(transfers)} transfers {ends} {took} {times} times as long as the same "
                f"between {others}"
                + ("" if separable else f"; link or {link.unit}, the trace does not show which")
            ),
            ranks=link.ranks,
            streams=streams(transfers, run),
            saving=gain,
            place=f"in the {mostly} {ends}" if waits else None,
            evidence=(
                Evidence("time against the other pairs", ratio, "x", self.min_ratio),
                Evidence(f"bandwidth {ends}", slow_gb_s, "GB/s"),
                Evidence("bandwidth of the others", rest_gb_s, "GB/s"),
            ),
            ruled_out=(
                "sizes and late ranks: transfers of one kind are compared, without waiting",
                *(("a slow rank: both are as fast as others elsewhere",) if separable else ()),
                *(("shared cores: nearly every exchange takes as long",) if waits else ()),
            ),
            advice=(
                f"check cable, port and slot between {link.between}, or "
                "order the ranks so that another pair uses this link"
            ),
            confidence="medium" if separable else "low",
        )

    @staticmethod
    def bad() -> Measures:
        """Four ranks in a ring; 2 → 3 takes twice as long."""
        return _ring({2: 200.0})

    @staticmethod
    def good() -> Measures:
        """All of rank 2's edges take twice as long: a slow rank."""
        return _ring({1: 200.0, 2: 200.0})


class _Link(Struct, frozen=True):
    """What is slow: pairs of ranks, the first of which is the slowest; whom to name, in words."""

    slow: tuple[Pair, ...]
    ranks: tuple[int, ...]
    ends: str
    between: str
    unit: str = "rank"
    separable: bool = True


def _by_pair(known: Rows) -> dict[Pair, Float64]:
    """What each two ranks' transfers take against others of their kind."""
    ends = known.ints("sender"), known.ints("receiver")
    relative = known.floats("relative")
    return {(pair[0], pair[1]): relative[at] for pair, at in rows_by(*ends).items()}


def _of(known: Rows, pairs: Collection[Pair]) -> Bool:
    """Which are of these pairs."""
    its = rows_by(known.ints("sender"), known.ints("receiver"))
    found = np.zeros(len(known), np.bool_)
    for pair in its.keys() & set(pairs):
        found[its[pair]] = True
    return found


def _standing_out(level: Mapping[Pair, float], run: Measures, *, waits: bool) -> _Link | None:
    """The slowest pair, or hosts, or few pairs, with no other pair nearly as slow."""
    pairs = sorted(level, key=lambda pair: (level[pair], pair), reverse=True)
    sender, receiver = first = pairs[0]
    rest = [level[pair] for pair in pairs if pair not in (first, first[::-1])]
    if not rest:
        return None
    usual = float(np.median(rest))
    ratio = level[first] / usual
    least = usual * (1 + (ratio - 1) * (_WAITED if waits else _NEARLY))
    half = [pair for pair in pairs if level[pair] > least]
    if set(half) <= {first, first[::-1]}:
        ranks = f"the ranks {sender} and {receiver}"
        return _Link((first,), tuple(sorted(first)), f"rank {sender} → rank {receiver}", ranks)
    of_hosts = _of_hosts(pairs, tuple(half), hosts(run))
    return of_hosts if of_hosts or waits else _of_several(pairs, tuple(half))


def _of_several(pairs: list[Pair], slow: tuple[Pair, ...]) -> _Link | None:
    """A few pairs, none of whose ranks is slow with several others and fast with none.

    One end of each at least is as fast with another.
    """
    fast = {rank for pair in pairs if pair not in slow for rank in pair}
    ranks = tuple(sorted({rank for pair in slow for rank in pair}))
    cables = {frozenset(pair) for pair in slow}
    links = Counter(rank for cable in cables for rank in cable)
    slow_rank = any(links[rank] > 1 for rank in links.keys() - fast)
    if len(slow) > _FEW * len(pairs) or slow_rank or not all(fast & cable for cable in cables):
        return None
    ends = ", ".join(f"rank {sender} → rank {receiver}" for sender, receiver in slow)
    between = ", ".join(f"{sender} and {receiver}" for sender, receiver in slow)
    return _Link(slow, ranks, ends, f"the ranks {between}")


def _of_hosts(
    pairs: list[Pair], slow: tuple[Pair, ...], host: Mapping[int, object]
) -> _Link | None:
    """The hosts all of whose pairs, and no others, are slow."""
    named = [pair for pair in pairs if host.keys() >= {*pair}]
    across = [pair for pair in named if host[pair[0]] != host[pair[1]]]
    if not set(slow) <= set(across) or len(across) - len(slow) < 2:
        return None
    way = [(host[a], host[b]) for a, b in slow]
    sender, receiver = way[0]
    ranks = tuple(sorted({rank for pair in slow for rank in pair}))
    of_link = {p for p in across if (host[p[0]], host[p[1]]) == (sender, receiver)}
    if set(slow) == of_link:
        ends = f"host {sender} → host {receiver}"
        return _Link(slow, ranks, ends, f"the hosts {sender} and {receiver}", "host")
    for name in (sender, receiver):
        sends = {pair for pair in across if host[pair[0]] == name}
        receives = {pair for pair in across if host[pair[1]] == name}
        for its, verb in ((sends, "from"), (receives, "to"), (sends | receives, "from and to")):
            if set(slow) == its:
                mine = tuple(rank for rank in ranks if host[rank] == name)
                between = f"host {name} and the others"
                return _Link(slow, mine, f"{verb} host {name}", between, "host", separable=False)
    return None


def _separate(slow: Rows, rest: Rows) -> bool:
    """Whether the first quartile of these is above the third of those."""
    above, below = (its.floats("relative") for its in (slow, rest))
    return bool(np.quantile(above, 0.25) > np.quantile(below, 0.75))


def _steady(slow: Rows) -> bool:
    """Whether what threads move is never much faster than usual; what GPUs move may be."""
    each = _by_pair(slow.take(slow.flags("by_cpu"))).values()
    return all(np.quantile(times, 0.1) >= _STEADY * np.median(times) for times in each)


def _ring(took_us: dict[int, float]) -> Measures:
    run = Tiny(4)
    for i in range(12):
        for rank in range(4):
            took = took_us.get(rank, 100.0)
            to, at = (rank + 1) % 4, i * 1000.0 + rank * 220
            run.collective(rank, "send", at, took, size=4_000_000, peer=to)
            run.collective(to, "recv", at, took, size=4_000_000, peer=rank)
    return run.trace()
