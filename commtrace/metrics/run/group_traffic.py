"""What the traffic of process groups tells of the mesh's dimension that they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from msgspec import Struct

from commtrace.arrays import Bool, Float64, Int64, integers, nth
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.rank.phases import phases

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["by_traffic"]

_ENOUGH = 4  # ranks of each family, the lowest: of a pipeline they are the first stage
_METRICS_BYTES = 1024  # groups without larger operations share losses and norms
_SMALL = 1 / 64  # of the group's largest operation: smaller ones are not what it is for
_MIXED = 1 / 4  # of a group's bytes: two uses of at least as many are no single dimension
_FORWARD = 0.25  # of a step: what is before is in the forward pass
_BACKWARD = 0.3  # of a step: what is behind is not
_UNIFORM = 0.8  # of the operations have the same size: activations, not gradients
_ALL = 0.95  # of the reductions are known to be launched behind the forward pass
_GATHERS = 2  # before the first reduce_scatter: parameters of several layers
_UNEVEN = 0.3  # different sizes for each all_to_all: tokens, routed to experts
_BURST = 3  # all_to_alls at once: queries, keys and values
_AT_ONCE = 0.1  # of an operation's time: what follows sooner is of the same burst
_TOGETHER = 0.9  # of the messages go both ways at once: a ring of two
_IN_TURN = 0.5  # at most as many: a pipeline of two
_KINDS = {
    **dict.fromkeys(POINT_TO_POINT, "messages"),
    "all_to_all": "all_to_all",
    "all_reduce": "reduce",
    "reduce_scatter": "reduce",
    "all_gather": "reduce",
}

_Link = tuple[int, int]
_Links = set[_Link]
_Messages = tuple[Bool, Int64]
"""Of a rank's messages with another, which it sent, and when each was done."""


def by_traffic(run: Measures, family: Int64) -> dict[int, str]:
    """The dimension of each family of sibling groups whose traffic is clear.

    ``family`` has its number for each row of ``collectives``; -1 for rows of none. What each
    dimension is known by:

    - pp: messages along a chain of ranks, in turn; cp: messages around a ring;
    - ep: all_to_alls, of uneven sizes or one by one; cp: of queries, keys and values at once;
    - tp: reductions of activations, so in the forward pass and in the backward pass;
    - dp: reductions of gradients, so behind it, or of shards of what another dp reduced;
      all_gathers of the parameters of several layers before any reduce_scatter.
    """
    rows = _rows(run, family)
    if (rows["kind"] == "reduce").any():
        rows["position"] = _positions(run, rows)
        rows["behind"] = _behind(run, rows)
    found: dict[int, str | None] = {}
    reducing: dict[int, _Reducing] = {}
    for key, mine in rows.groupby("family", sort=False):
        number = cast("int", key)
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


def _rows(run: Measures, family: Int64) -> pd.DataFrame:
    """The rows that tell a family's use, by rank and time."""
    table = run.collective_columns
    op, rank, start = table["op"].cat, integers(table["rank"]), integers(table["start_ns"])
    kind = np.asarray([*(_KINDS.get(name) for name in op.categories), None], dtype=object)[op.codes]
    size = table["size_bytes"].to_numpy(np.float64, na_value=np.nan)
    mine = np.flatnonzero((family >= 0) & (kind != None) & ~np.isnan(size))  # noqa: E711
    largest = np.zeros(int(family.max(initial=-1)) + 1)
    np.maximum.at(largest, family[mine], size[mine])
    most = largest[family[mine]]
    mine = mine[(most > _METRICS_BYTES) & (size[mine] >= _SMALL * most)]
    ranks = int(rank.max(initial=0)) + 1
    member = family * ranks + rank
    members = np.unique(member[mine])
    some = members[nth(members // ranks) < _ENOUGH]
    mine = mine[np.isin(member[mine], some) | (kind[mine] == "messages")]
    mine = mine[np.lexsort((start[mine], rank[mine], family[mine]))]
    columns = ["rank", "step", "op", "size_bytes", "in_bytes", "out_bytes", "peer", "start_ns"]
    rows: pd.DataFrame = table[[*columns, "duration_ns"]].iloc[mine].reset_index(drop=True)
    return rows.assign(
        family=family[mine],
        row=mine,
        end_ns=rows["start_ns"] + rows["duration_ns"],
        size_bytes=size[mine],
        op=rows["op"].astype(object),
        kind=kind[mine],
    )


def _behind(run: Measures, rows: pd.DataFrame) -> Bool:
    """Whether each reduction is known to be launched behind the forward pass."""
    ranks = rows.loc[rows["kind"] == "reduce", "rank"].unique()
    mine = run.collective_columns["rank"].isin(ranks).to_numpy()
    place = np.where(mine, np.cumsum(mine) - 1, -1)
    phase = phases(run if mine.all() else _of_ranks(run, ranks))
    late = np.asarray([its in ("backward", "optimizer") for its in phase])
    behind: Bool = np.append(late, False)[place[rows["row"].to_numpy()]]
    return behind


def _of_ranks(run: Measures, ranks: Any) -> Measures:
    """What tells the phases of some ranks."""
    tables = {name: getattr(run, name) for name in ("collectives", "kernels", "ops", "steps")}
    return replace(run, **{name: t[t["rank"].isin(ranks)] for name, t in tables.items()})


def _positions(run: Measures, rows: pd.DataFrame) -> Float64:
    """The share of its step's compute that began before each reduction; else NaN."""
    position = np.full(len(rows), np.nan)
    wanted = ((rows["kind"] == "reduce") & rows["step"].notna()).to_numpy()
    places = {
        rank: at[wanted[at]]
        for rank, at in rows.groupby("rank").indices.items()
        if wanted[at].any()
    }
    computing = [
        table[table["rank"].isin([*places]) & (table["kind"] == "compute") & table["step"].notna()]
        for table in (run.kernels, run.ops)
    ]
    when = ["rank", "step", "start_ns", "duration_ns"]
    for rank, mine in pd.concat([table[when] for table in computing]).groupby("rank"):
        mine = mine.sort_values("start_ns")
        done = np.concatenate(([0], mine["duration_ns"].cumsum().to_numpy(np.float64)))
        ends = pd.Series(done[1:]).groupby(mine["step"].to_numpy(np.int64)).max()
        at = places[rank]
        before = done[mine["start_ns"].searchsorted(rows["start_ns"].to_numpy()[at])]
        step = rows["step"].to_numpy(np.int64, na_value=-1)[at]
        last = ends.reindex(step).to_numpy()
        first = ends.shift(fill_value=0).reindex(step).to_numpy()
        position[at] = (before - first) / np.where(last > first, last - first, np.nan)
    return position


def _kind(mine: pd.DataFrame) -> str | None:
    """What most bytes are of; None if two kinds have a part of them."""
    share = mine.groupby("kind")["size_bytes"].sum() / mine["size_bytes"].sum()
    used = share[share >= _MIXED]
    return str(used.index[0]) if len(used) == 1 else None


def _by_messages(mine: pd.DataFrame) -> str | None:
    """A chain is a pipeline; a ring that goes one way passes keys and values on."""
    mine = mine[mine["peer"].notna()]
    rank, peer = mine["rank"].to_numpy(np.int64), mine["peer"].to_numpy(np.int64)
    sends, end = (mine["op"] == "send").to_numpy(), mine["end_ns"].to_numpy()
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    links = set(zip(source.tolist(), target.tolist(), strict=True))
    order = np.lexsort((peer, rank))
    begins = np.flatnonzero(np.diff(rank[order]) | np.diff(peer[order])) + 1
    by_pair = {
        (int(rank[at[0]]), int(peer[at[0]])): (sends[at], end[at])
        for at in np.split(order, begins)
        if at.size
    }
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
    if max(degree.values()) > 2:
        return None
    if both_ways and together is not None and together > _IN_TURN:
        return None  # each swaps with both neighbours at once: borders of a grid
    if len(neighbours) < len(ranks):
        # Of a ring, missing ranks can leave a chain that goes one way.
        return "pp" if both_ways or ranks <= {rank for rank, _ in messages} else None
    return "pp" if both_ways else "cp" if len(links) == len(ranks) else None


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


def _by_all_to_alls(mine: pd.DataFrame) -> str:
    """Experts get uneven shares, or one exchange at a time; attention swaps three at once."""
    mine = mine[mine["op"] == "all_to_all"]
    one = mine[mine["rank"] == mine["rank"].iloc[0]]
    sizes = one["size_bytes"].nunique()
    uneven = (mine["in_bytes"] != mine["out_bytes"]).fillna(value=False).any()
    if uneven or sizes > max(_BURST, _UNEVEN * len(one)):
        return "ep"
    return "cp" if sizes > 1 or _bursts(one) else "ep"


def _bursts(one: pd.DataFrame) -> bool:
    """Whether half of a rank's operations follow each other at once, in threes."""
    start, end = one["start_ns"].to_numpy(), one["end_ns"].to_numpy()
    paused = start[1:] - end[:-1] > np.median(end - start) * _AT_ONCE
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
    sizes: Mapping[float, int]
    shards: frozenset[float]

    @classmethod
    def of(cls, mine: pd.DataFrame) -> _Reducing:
        reduces = mine[mine["op"] != "all_gather"]
        bytes_of = reduces.groupby("op")["size_bytes"].sum()
        scatters = bytes_of.get("reduce_scatter", 0) > bytes_of.get("all_reduce", 0)
        reduces = reduces[reduces["op"] == ("reduce_scatter" if scatters else "all_reduce")]
        first = reduces.groupby(["rank", "step"])["position"].min()
        return cls(
            bool(scatters),
            float(first.groupby("rank").median().min()),
            float(reduces["behind"].mean()),
            _gathers(mine) if scatters else np.nan,
            Counter(reduces["size_bytes"].tolist()),
            frozenset(reduces["out_bytes"].dropna().astype("float64")) if scatters else frozenset(),
        )

    def dimension(self) -> str | None:
        """Tp or dp; None where neither is clear."""
        if self.position >= _BACKWARD or self.behind >= _ALL or self.gathers >= _GATHERS:
            return "dp"
        total = sum(self.sizes.values())
        uniform = total and max(self.sizes.values()) >= _UNIFORM * total
        in_both = self.position < _FORWARD and self.behind > 0
        return "tp" if in_both and uniform else None


def _gathers(mine: pd.DataFrame) -> float:
    """All_gathers before the first reduce_scatter of a step, as usual."""
    mine = mine[mine["step"].notna()]
    place = [mine["rank"], mine["step"]]
    scattered = (mine["op"] == "reduce_scatter").groupby(place).cumsum()
    before = (mine["op"] == "all_gather") & (scattered == 0)
    return float(before.groupby(place).sum().median())
