"""What the traffic of process groups tells of the mesh's dimension that they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, least, rows_by
from commtrace.metrics.run.traffic_rows import traffic_rows
from commtrace.quantiles import median, quantiles
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["by_traffic"]

_MIXED = 1 / 4  # of a group's bytes: two uses of at least as many are no single dimension
_FORWARD = 0.25  # of a step: what is before is in the forward pass
_BACKWARD = 0.3  # of a step: what is behind is not
_UNIFORM = 0.8  # of the operations have the same size: activations, not gradients
_ALL = 0.95  # of the reductions are known to be launched behind the forward pass
_GATHERS = 2  # before the first reduce_scatter: parameters of several layers
_UNEVEN = 0.3  # different sizes for each all_to_all: tokens, routed to experts
_BURST = 3  # all_to_alls at once: queries, keys and values
_OF_A_LAYER = 8  # all_to_alls, forward and backward
_AT_ONCE = 0.1  # of an operation's time: what follows sooner is of the same burst
_TOGETHER = 0.9  # of the messages go both ways at once: a ring of two
_IN_TURN = 0.5  # at most as many: a pipeline of two

_Link = tuple[int, int]
_Links = set[_Link]
_Messages = tuple[Bool, Int64]
"""Of a rank's messages with another, which it sent, and when each was done."""


def by_traffic(run: Measures, family: Int64) -> dict[int, str]:
    """The dimension of each family of sibling groups whose traffic is clear.

    ``family`` has its number for each row of ``collectives``; -1 for rows of none. What each
    dimension is known by:

    - pp: messages along a chain of ranks, in turn; cp: messages around a ring;
    - ep: all_to_alls, of uneven sizes or one by one; cp: of queries, keys and values at once,
      eight a step or more;
    - tp: reductions of activations, so in the forward pass and in the backward pass;
    - dp: reductions of gradients, so behind it, or of shards of what another dp reduced;
      all_gathers of the parameters of several layers before any reduce_scatter.
    """
    rows = traffic_rows(run, family)
    found: dict[int, str | None] = {}
    reducing: dict[int, _Reducing] = {}
    for (number,), at in rows_by(rows.ints("family")).items():
        mine = rows.take(at)
        kind = _kind(mine)
        if kind == "messages":
            found[number] = _by_messages(mine)
        elif kind == "all_to_all":
            found[number] = _by_all_to_alls(mine)
        elif kind == "reduce":
            reducing[number] = _Reducing.of(mine)
    sharded = {number: each for number, each in reducing.items() if each.scatters}
    found |= {number: each.dimension() for number, each in sharded.items()}
    shards = {
        size for number, each in sharded.items() if found[number] == "dp" for size in each.shards
    }
    for number in reducing.keys() - sharded.keys():
        of_shards = shards and set(reducing[number].sizes) <= shards
        found[number] = "dp" if of_shards else reducing[number].dimension()
    return {number: dimension for number, dimension in found.items() if dimension is not None}


def _kind(mine: Rows) -> str | None:
    """What most bytes are of; None if two kinds have a part of them."""
    kind, size = mine.coded("kind"), mine.ints("size_bytes")
    share = np.bincount(kind.codes, size, len(kind.names)) / size.sum()
    used = np.flatnonzero(share >= _MIXED)
    return kind.names[int(used[0])] if used.size == 1 else None


def _by_messages(mine: Rows) -> str | None:
    """A chain is a pipeline; a ring that goes one way passes keys and values on."""
    mine = mine.take(mine.ints("peer") != NULL)
    rank, peer, end = (mine.ints(name) for name in ("rank", "peer", "end_ns"))
    sends = mine.coded("op").being("send")
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    links = set(zip(source.tolist(), target.tolist(), strict=True))
    by_pair = {pair: (sends[at], end[at]) for pair, at in rows_by(rank, peer).items()}
    answers = {_shape(part, by_pair) for part in _connected(links)} if links else {None}
    return answers.pop() if len(answers) == 1 else None


def _connected(links: _Links) -> list[_Links]:
    """The links of each set of ranks that are connected."""
    part_of: dict[int, set[int]] = {}
    for link in links:
        joined = part_of.get(link[0], {link[0]}) | part_of.get(link[1], {link[1]})
        part_of |= dict.fromkeys(joined, joined)
    parts: dict[int, _Links] = {}
    for link in links:
        parts.setdefault(id(part_of[link[0]]), set()).add(link)
    return list(parts.values())


def _shape(links: _Links, messages: Mapping[_Link, _Messages]) -> str | None:
    """What a connected set of links is."""
    ranks = {rank for link in links for rank in link}
    neighbours = {frozenset(link) for link in links}
    both_ways = len(links) == 2 * len(neighbours)
    together = _together([messages[link] for link in links if link in messages])
    if len(ranks) == 2:
        return _between_two(together) if both_ways else "pp"
    degree = Counter(rank for pair in neighbours for rank in pair)
    if max(degree.values()) > 2 or _serves(neighbours, degree):
        return None
    if both_ways and together is not None and together > _IN_TURN:
        return None  # each swaps with both neighbours at once: borders of a grid
    if len(neighbours) < len(ranks):
        # Of a ring, missing ranks can leave a chain that goes one way.
        return "pp" if both_ways or ranks <= {rank for rank, _ in messages} else None
    return "pp" if both_ways else "cp" if len(links) == len(ranks) else None


def _serves(neighbours: set[frozenset[int]], degree: Mapping[int, int]) -> bool:
    """Whether one between two is below or above both, and they have no others: it serves them."""
    for one in (rank for rank, count in degree.items() if count == 2):
        beside = {other for pair in neighbours if one in pair for other in pair} - {one}
        alone = all(degree[other] == 1 for other in beside)
        if alone and not min(beside) < one < max(beside):
            return True
    return False


def _between_two(together: float | None) -> str | None:
    """A ring of two sends and receives at once, a pipeline in turn."""
    if together is None or _IN_TURN < together < _TOGETHER:
        return None
    return "cp" if together >= _TOGETHER else "pp"


def _together(messages: list[_Messages]) -> float | None:
    """The share of messages with an answer at once, the least of any two ranks; None if unknown."""
    shares = []
    for sends, end in messages:
        out, back = np.sort(end[sends]), np.sort(end[~sends])
        count = min(out.size, back.size)
        usual = (end.max() - end.min()) / max(out.size - 1, 1)
        if count:
            shares.append(float((np.abs(out[:count] - back[:count]) <= usual / 4).mean()))
    return min(shares, default=None)


def _by_all_to_alls(mine: Rows) -> str | None:
    """Experts get uneven shares, or one exchange at a time; attention swaps three at once.

    And what it made of them, and backward all four again: fewer in a step are of neither, as of
    embedding tables.
    """
    mine = mine.take(mine.coded("op").being("all_to_all"))
    one = mine.take(mine.ints("rank") == mine.ints("rank")[0])
    sizes = distinct(one.ints("size_bytes")).size
    sent, got = mine.ints("in_bytes"), mine.ints("out_bytes")
    uneven = ((sent != got) & (sent != NULL) & (got != NULL)).any()
    if uneven or sizes > max(_BURST, _UNEVEN * len(one)):
        return "ep"
    if sizes == 1 and not _bursts(one):
        return "ep"
    step = one.ints("step")
    each = np.bincount(codes(step[step != NULL]))
    return None if each.size and median(each) < _OF_A_LAYER else "cp"


def _bursts(one: Rows) -> bool:
    """Whether half of a rank's operations follow each other at once, in threes."""
    start, end = one.ints("start_ns"), one.ints("end_ns")
    paused = start[1:] - end[:-1] > median(end - start) * _AT_ONCE
    burst = np.cumsum(np.concatenate(([0], paused)))
    return bool((np.bincount(burst)[burst] >= _BURST).mean() >= 0.5)


class _Reducing(Struct, frozen=True):
    """A family's reductions.

    ``position`` is that of the first reduction in a step, of the rank that is first;
    ``behind`` the share that is known to be behind the forward pass; ``gathers`` the usual
    all_gathers before a step's first reduce_scatter; NaN is unknown. ``sizes`` counts the
    reductions of each size; ``shards`` are what reduce_scatters left.
    """

    scatters: bool
    position: float
    behind: float
    gathers: float
    sizes: Mapping[int, int]
    shards: frozenset[int]

    @classmethod
    def of(cls, mine: Rows) -> _Reducing:
        op, size = mine.coded("op"), mine.ints("size_bytes")
        scattered, reduced = (op.being(name) for name in ("reduce_scatter", "all_reduce"))
        scatters = bool(size[scattered].sum() > size[reduced].sum())
        reduces = mine.take(scattered if scatters else reduced)
        out_bytes = reduces.ints("out_bytes")
        return cls(
            scatters,
            _first_position(reduces),
            float(reduces.flags("behind").mean()) if len(reduces) else np.nan,
            _gathers(mine) if scatters else np.nan,
            Counter(reduces.ints("size_bytes").tolist()),
            frozenset(out_bytes[out_bytes != NULL].tolist()) if scatters else frozenset(),
        )

    def dimension(self) -> str | None:
        """Tp or dp; None where neither is clear."""
        if self.position >= _BACKWARD or self.behind >= _ALL or self.gathers >= _GATHERS:
            return "dp"
        total = sum(self.sizes.values())
        uniform = total and max(self.sizes.values()) >= _UNIFORM * total
        in_both = self.position < _FORWARD and self.behind > 0
        return "tp" if in_both and uniform else None


def _first_position(reduces: Rows) -> float:
    """Where the first of a step is, as usual on the rank that is first; NaN if unknown."""
    known = (reduces.ints("step") != NULL) & ~np.isnan(reduces.floats("position"))
    if not known.any():
        return np.nan
    rank, step, position = (
        reduces.ints("rank")[known],
        reduces.ints("step")[known],
        reduces.floats("position")[known],
    )
    place = codes(rank, step)
    first = np.full(int(place.max()) + 1, np.inf)
    np.minimum.at(first, place, position)
    of_rank = codes(rank[first_rows(place)])
    return float(quantiles(of_rank, first, 50, int(of_rank.max()) + 1).min())


def _gathers(mine: Rows) -> float:
    """All_gathers before the first reduce_scatter of a step, as usual; NaN without steps."""
    mine = mine.take(mine.ints("step") != NULL)
    if not len(mine):
        return np.nan
    place, row = codes(mine.ints("rank"), mine.ints("step")), np.arange(len(mine))
    scattered = mine.coded("op").being("reduce_scatter")
    first = least(place[scattered], row[scattered], int(place.max()) + 1)
    before = mine.coded("op").being("all_gather") & (row < first[place])
    return median(np.bincount(place, before))
