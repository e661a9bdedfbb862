"""Which way between two ranks or hosts stands out among all others, and by how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, codes, rows_by, sums
from commtrace.causal.edits.run_edits import as_measured
from commtrace.causal.replay.graph import replayed
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import taking_less
from commtrace.comms import EVEN, members
from commtrace.diagnosis import CannotLook, too_few
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import on_gpus, served
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.link_times import between_two, link_times
from commtrace.quantiles import median, quantile
from commtrace.rules._between_hosts import between_hosts
from commtrace.table import Rows
from commtrace.units import counted, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "MIN_COUNT",
    "MIN_RATIO",
    "Rings",
    "SlowPairs",
    "SlowTransfers",
    "by_pair",
    "rings_over",
    "slow_transfers",
    "waits_left",
]

MIN_COUNT, MIN_RATIO = 10, 1.25
_STEADY = 0.75  # of the median: what a link limits is never much faster
_NEARLY = 0.5  # of the slowest pair's excess: a pair that is slow, too
_FEW = 0.25  # of all pairs
_ABOUT = 1.25  # times as fast as its slowest link
_WAITED = 0.25  # the same where only waits are known, which hide one another

Pair = tuple[int, int]


class SlowTransfers(Struct, frozen=True, eq=False, weakref=True):
    """The ``transfers`` over a slow link, rows of BETWEEN_TWO.

    ``slow`` and ``rest`` are the times of these and of all others, as LINK_TIMES has them, and
    ``ratio`` is how many times as long these take.
    """

    link: SlowPairs
    transfers: Rows
    slow: Rows
    rest: Rows
    ratio: float

    @property
    def less_ns(self) -> Float64:
        """What each transfer would take less over a link like the others."""
        return np.asarray(self.transfers.ints("transfer_ns") * (1 - 1 / self.ratio))


class Rings(Struct, frozen=True, eq=False):
    """Operations whose ring crosses a slow link, which takes so many times as long."""

    transfers: Rows
    ratio: float

    @property
    def less_ns(self) -> Float64:
        """What each would take less over a link like the others."""
        return np.asarray(self.transfers.ints("transfer_ns") * (1 - 1 / self.ratio))


@measure
def slow_transfers(run: Measures, min_count: int, min_ratio: float) -> SlowTransfers | None:
    """The transfers of the pairs, or the hosts, that stand out; None if none do.

    CannotLook with fewer than three pairs of so many transfers.
    """
    several_ranks(run)
    known = link_times(run)
    pair = codes(known.ints("sender"), known.ints("receiver"))
    count = sums(pair, known.ints("count"), pair.size)
    known = known.take(count[pair] >= min_count)
    level = {pair: median(its) for pair, its in by_pair(known).items()}
    if len(level) < 3:
        raise too_few(
            len(level), "pair", 3, f"of ranks with {counted(min_count, 'transfer')} or more"
        )
    link = _standing_out(level, run, waits=bool(known.flags("on_cpu").all()))
    if link is None:
        return None
    back = [pair[::-1] for pair in link.slow]
    slow = known.take(_of(known, link.slow))
    rest = known.take(_of(known, link.rest) if link.rest else ~_of(known, [*link.slow, *back]))
    if not len(rest) or not _separate(slow, rest) or not _steady(slow):
        return None
    ratio = float(median(slow.floats("relative")) / median(rest.floats("relative")))
    if ratio < min_ratio:
        return None
    transfers = between_two(run)
    return SlowTransfers(link, transfers.take(_of(transfers, link.slow)), slow, rest, ratio)


def waits_left(run: Measures) -> Callable[[Int64], float]:
    """What share of the waiting in calls of the graph is left without slow links, if there are any.

    A function of these calls' rows.
    """
    try:
        slow = slow_transfers(run, MIN_COUNT, MIN_RATIO) or between_hosts(run, MIN_COUNT)
    except CannotLook:
        slow = between_hosts(run, MIN_COUNT)
    if slow is None:
        return lambda _: 1.0
    its, mend = run_graph(run), taking_less(run, slow.transfers, slow.less_ns)
    waits_ns, left_ns = (
        time[its.met] - time[its.started]
        for time in (its.graph.time_ns, replayed(its.graph, mend(as_measured(run))))
    )

    def share(calls: Int64) -> float:
        return min(float(left_ns[calls].sum() / max(waits_ns[calls].sum(), 1)), 1.0)

    return share


class SlowPairs(Struct, frozen=True):
    """What is slow: pairs of ranks, the first of which is the slowest; whom to name, in words.

    ``rest`` are the pairs that these are held against, by default all others.
    """

    slow: tuple[Pair, ...]
    ranks: tuple[int, ...]
    ends: str
    between: str
    unit: str = "rank"
    separable: bool = True
    rest: tuple[Pair, ...] = ()


def rings_over(run: Measures, found: SlowTransfers) -> Rings | None:
    """The operations of rings that the link bounds: they are as fast as it is, about; None if none.

    Of groups that both of its ends are in, no smaller than the messages; not of those that take as
    long in groups without it.
    """
    link_gb_s = median(found.slow.floats("busbw_gb_s"))
    try:
        known = served(run)
    except CannotLook:
        return None
    group = known.coded("communicator")
    over = group.where(lambda name: {*found.link.slow[0]} < {*members(name)})
    busbw = known.floats("busbw_gb_s")
    bound = (busbw > link_gb_s / _ABOUT) & (busbw < link_gb_s * _ABOUT)
    even = known.coded("op").where(EVEN.__contains__) & known.flags("exact")
    even &= on_gpus(known, run) & (known.ints("size_bytes") >= found.slow.ints("size_bytes").min())
    rings = over & even & bound
    alike = (known.coded("op").codes, known.ints("ranks"), known.ints("size_bytes"))
    for at in rows_by(*alike).values():
        elsewhere = busbw[at[even[at] & ~over[at]]]
        if elsewhere.size and median(elsewhere) < link_gb_s * _ABOUT:
            rings[at] = False
    return Rings(known.take(rings), found.ratio) if rings.any() else None


def by_pair(known: Rows) -> dict[Pair, Float64]:
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


def _standing_out(level: Mapping[Pair, float], run: Measures, *, waits: bool) -> SlowPairs | None:
    """The slowest pair, or hosts, or few pairs, with no other pair nearly as slow."""
    pairs = sorted(level, key=lambda pair: (level[pair], pair), reverse=True)
    if not waits and (host := _slow_host(pairs, level, hosts(run))):
        return host
    sender, receiver = first = pairs[0]
    rest = [level[pair] for pair in pairs if pair not in (first, first[::-1])]
    if not rest:
        return None
    usual = median(rest)
    ratio = level[first] / usual
    least = usual * (1 + (ratio - 1) * (_WAITED if waits else _NEARLY))
    half = [pair for pair in pairs if level[pair] > least]
    if set(half) <= {first, first[::-1]}:
        slow = tuple(sorted(half)) or (first,)
        sender, receiver = slow[0]
        ends = f"rank {sender} {'→' if len(slow) == 1 else '↔'} rank {receiver}"
        return SlowPairs(slow, tuple(sorted(first)), ends, f"the ranks {sender} and {receiver}")
    of_hosts = _of_hosts(pairs, tuple(half), hosts(run))
    return of_hosts if of_hosts or waits else _of_several(pairs, tuple(half))


def _of_several(pairs: list[Pair], slow: tuple[Pair, ...]) -> SlowPairs | None:
    """A few pairs, none of whose ranks is slow with several others and fast with none.

    One end of each at least is as fast with another. A rank that all of them are of is named alone.
    """
    fast = {rank for pair in pairs if pair not in slow for rank in pair}
    ranks = tuple(sorted({rank for pair in slow for rank in pair}))
    cables = {frozenset(pair) for pair in slow}
    links = Counter(rank for cable in cables for rank in cable)
    slow_rank = any(links[rank] > 1 for rank in links.keys() - fast)
    if len(slow) > _FEW * len(pairs) or slow_rank or not all(fast & cable for cable in cables):
        return None
    if len(cables) > 1 and len(shared := frozenset.intersection(*cables)) == 1:
        (rank,) = shared
        others = numbered("rank", sorted({*ranks} - shared))
        return SlowPairs(slow, (rank,), f"rank {rank} ↔ {others}", f"rank {rank} and {others}")
    ends = ", ".join(f"rank {sender} → rank {receiver}" for sender, receiver in slow)
    between = ", ".join(f"{sender} and {receiver}" for sender, receiver in slow)
    return SlowPairs(slow, ranks, ends, f"the ranks {between}")


def _of_hosts(
    pairs: list[Pair], slow: tuple[Pair, ...], host: Mapping[int, object]
) -> SlowPairs | None:
    """The hosts all of whose pairs, and no others, are slow."""
    across = _across(pairs, host)
    if not set(slow) <= set(across) or len(across) - len(slow) < 2:
        return None
    way = [(host[a], host[b]) for a, b in slow]
    sender, receiver = way[0]
    ranks = tuple(sorted({rank for pair in slow for rank in pair}))
    of_link = {p for p in across if (host[p[0]], host[p[1]]) == (sender, receiver)}
    if set(slow) == of_link:
        ends = f"host {sender} → host {receiver}"
        return SlowPairs(slow, ranks, ends, f"the hosts {sender} and {receiver}", "host")
    for name in (sender, receiver):
        sends = {pair for pair in across if host[pair[0]] == name}
        receives = {pair for pair in across if host[pair[1]] == name}
        for its, verb in ((sends, "from"), (receives, "to"), (sends | receives, "from and to")):
            if set(slow) == its:
                return _of_host(name, slow, verb, host)
    return None


def _slow_host(
    pairs: list[Pair], level: Mapping[Pair, float], host: Mapping[int, object]
) -> SlowPairs | None:
    """The host whose pairs with several others are all slower than any without it.

    However many these are: along a chain of four hosts most of the pairs are of one of them. The
    ``pairs`` are the slowest first, and so of that host.
    """
    across = _across(pairs, host)
    for name in (host[rank] for pair in across[:1] for rank in pair):
        slow = tuple(pair for pair in across if name in (host[pair[0]], host[pair[1]]))
        rest = tuple(pair for pair in across if name not in (host[pair[0]], host[pair[1]]))
        others = {host[rank] for pair in slow for rank in pair} - {name}
        if len(others) > 1 and rest and level[slow[-1]] > MIN_RATIO * level[rest[0]]:
            return _of_host(name, slow, "from and to", host, rest)
    return None


def _across(pairs: list[Pair], host: Mapping[int, object]) -> list[Pair]:
    """Those of two hosts, both of which are known."""
    named = [pair for pair in pairs if host.keys() >= {*pair}]
    return [pair for pair in named if host[pair[0]] != host[pair[1]]]


def _of_host(
    name: object,
    slow: tuple[Pair, ...],
    verb: str,
    host: Mapping[int, object],
    rest: tuple[Pair, ...] = (),
) -> SlowPairs:
    """All that goes from or to a host, or both ways."""
    mine = tuple(sorted({rank for pair in slow for rank in pair if host[rank] == name}))
    between = f"host {name} and the others"
    return SlowPairs(slow, mine, f"{verb} host {name}", between, "host", separable=False, rest=rest)


def _separate(slow: Rows, rest: Rows) -> bool:
    """Whether the first quartile of these is above the third of those."""
    above, below = (its.floats("relative") for its in (slow, rest))
    return quantile(above, 0.25) > quantile(below, 0.75)


def _steady(slow: Rows) -> bool:
    """Whether what threads move is never much faster than usual; what GPUs move may be."""
    each = by_pair(slow.take(slow.flags("by_cpu"))).values()
    return all(quantile(times, 0.1) >= _STEADY * median(times) for times in each)
