"""Communication on CPUs by which programs make by hand what an all_reduce makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Float64,
    Int64,
    codes,
    distinct,
    first_rows,
    grouped,
    in_order,
)
from commtrace.comms import POINT_TO_POINT
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.message_peers import message_peers
from commtrace.metrics.run.operators_behind import calling_threads
from commtrace.metrics.run.used_between import MOVES
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["SMALL_BYTES", "HandMadeSum", "sums_by_hand"]

Way = Literal["root", "messages", "broadcasts", "ring"]

_NEUTRAL = frozenset(
    f"aten::{name}"
    for name in (
        *(*MOVES, "clone", "div", "div_", "empty_like", "mul", "mul_", "true_divide"),
        *("reshape", "zero_", "zeros", "zeros_like"),
    )
)
_JOINS = ("aten::stack", "aten::cat")
_ADDS = ("aten::add", "aten::add_", "aten::mean", "aten::sum")
_ASKED = frozenset({"gather", "scatter", "broadcast", *POINT_TO_POINT})
_MOSTLY, _HALF = 0.8, 0.5
_SEVERAL = 3
_PAIR = 2
SMALL_BYTES = 1 << 16
"""What takes as long however few bytes it has."""


class HandMadeSum(Struct, frozen=True, eq=False):
    """Sums of one group and type that are made one way, of whatever sizes.

    Through a ``root``: it gathers, and broadcasts or scatters what it made of the parts; or by
    ``messages`` to it and back. In turn: by ``broadcasts`` of each rank's part to all, or around
    a ``ring``. ``rows`` of ``collectives`` move the parts and sums, each row ``tensor_bytes``; an
    all_reduce takes ``needed`` of the time of each, as links carry it. ``summing_ns`` is how long
    hosts sum behind each.
    """

    way: Way
    group_size: int
    root: int | None
    rows: Int64
    operation: Int64
    tensor_bytes: Int64
    needed: Float64
    summing_ns: Int64
    sums: int

    def transfer_ns(self, run: Measures) -> Int64:
        """How long the operation of each row transfers."""
        every = matched(run).operations
        at = np.searchsorted(every.ints("operation"), self.operation)
        return every.ints("transfer_ns")[at]


class _Rows(NamedTuple):
    """What may be part of such sums: rows on CPUs whose calls are known, by rank and call.

    ``only`` flags those between which and the next call of the thread nothing is made but sums,
    copies and scaling; ``sums`` those behind which the first thing that is made is a sum.
    """

    table: Rows
    row: Int64
    operation: Int64
    peer: Int64
    tensor_bytes: Int64
    only: Bool
    sums: Bool
    summing_ns: Int64

    def take(self, which: Bool | Int64) -> _Rows:
        return _Rows(
            self.table.take(which),
            self.row[which],
            self.operation[which],
            self.peer[which],
            self.tensor_bytes[which],
            self.only[which],
            self.sums[which],
            self.summing_ns[which],
        )

    def being(self, op: str) -> Bool:
        return self.table.coded("op").being(op)


@measure
def sums_by_hand(run: Measures) -> tuple[HandMadeSum, ...]:
    """Every way in which a group makes sums by hand, the tensors of all sizes together.

    That only sums are made of what comes is known from the operators behind each call.
    """
    rows, on = _candidates(run), hosts(run)
    table, messages = rows.table, rows.being("send") | rows.being("recv")
    group = matched(run).matches.coded("communicator").take(rows.row)
    group = Coded(np.where(messages, -1, group.codes), group.names)  # calls of theirs name none
    found: dict[tuple[object, ...], list[HandMadeSum]] = {}
    for of_kind in grouped(group, table.coded("dtype"), rows.tensor_bytes):
        its = rows.take(of_kind)
        if not (its.only & its.sums).any():
            continue
        ranks = distinct(its.table.ints("rank")).tolist()
        apart = len({on.get(rank) for rank in ranks} - {None}) == len(ranks)
        communicator, of_type = group.at(int(of_kind[0])), its.table.coded("dtype").at(0)
        for made in _made(its, len(ranks), apart=apart):
            found.setdefault((communicator, of_type, made.way, made.root), []).append(made)
    return tuple(_together(parts) for parts in found.values())


def _together(parts: list[HandMadeSum]) -> HandMadeSum:
    one = parts[0]
    columns = ("rows", "operation", "tensor_bytes", "needed", "summing_ns")
    joined = {name: np.concatenate([getattr(its, name) for its in parts]) for name in columns}
    return HandMadeSum(
        way=one.way,
        group_size=one.group_size,
        root=one.root,
        sums=sum(its.sums for its in parts),
        **joined,
    )


def _candidates(run: Measures) -> _Rows:
    table = run.rows("collectives")
    mine = table.coded("op").where(_ASKED.__contains__) & table.coded("device").being("cpu")
    mine &= (table.ints("launch_ns") != NULL) & (table.ints("thread") != NULL)
    mine &= (table.ints("size_bytes") > 0) & (operation_of(run) >= 0)
    at = np.flatnonzero(mine)
    at = at[in_order(*(table.ints(name)[at] for name in ("rank", "launch_ns")))]
    its = run.rows("collectives", at)
    size, parts = its.ints("size_bytes"), its.coded("op").where(("gather", "scatter").__contains__)
    among = np.maximum(its.ints("group_size"), 1)
    tensor = np.where(parts, size // among, size)
    only, sums = np.zeros(at.size, np.bool_), np.zeros(at.size, np.bool_)
    took = np.zeros(at.size, np.int64)
    by_rank = its.ints("rank")  # in order
    for rank in distinct(by_rank).tolist():
        here = slice(*np.searchsorted(by_rank, (rank, rank + 1)).tolist())
        only[here], sums[here], took[here] = _behind(run, rank, its.take(here))
    return _Rows(its, at, operation_of(run)[at], message_peers(run, at), tensor, only, sums, took)


def _behind(run: Measures, rank: int, calls: Rows) -> tuple[Bool, Bool, Int64]:
    """Of each of a rank's calls whether only sums follow, whether one does, and for how long."""
    only, sums = np.zeros(len(calls), np.bool_), np.zeros(len(calls), np.bool_)
    took = np.zeros(len(calls), np.int64)
    ends_ns = calls.ints("start_ns") + calls.ints("duration_ns")
    for thread in calling_threads(run, rank, calls):
        here, own = thread.calls, thread.ops
        begins, name = own.ints("start_ns"), own.coded("name")
        done = np.maximum(ends_ns, calls.ints("launch_ns"))[here]
        first = np.searchsorted(begins, done)
        last = np.searchsorted(begins, thread.next_launch_ns(done))
        adds, joins = name.where(_ADDS.__contains__), name.where(_JOINS.__contains__)
        other = ~(adds | joins | name.where(_NEUTRAL.__contains__))
        ends = np.minimum(_next(other, first), last)
        only[here] = ends == last
        sums[here] = _next(adds, first) < ends
        spent = np.append(0, np.cumsum(own.ints("duration_ns")))
        took[here] = np.where(sums[here], spent[ends] - spent[first], 0)
    # What else adds behind the last of a step, as an optimizer does, is no part of the sum.
    usual = round(median(took[only & sums])) if (only & sums).any() else 0
    return only, sums, np.where(only, took, np.minimum(took, usual))


def _next(flags: Bool, at: Int64) -> Int64:
    """The next place that is flagged, from each place on; the end where none is."""
    places = np.append(np.flatnonzero(flags), flags.size)
    following: Int64 = places[np.searchsorted(places, at)]
    return following


def _made(its: _Rows, n: int, *, apart: bool) -> Iterator[HandMadeSum]:
    """The sums that operations of ``n`` ranks, of one type and size of tensor, make.

    An all_reduce by a ring sends 2(n-1)/n tensors on each link, 2(n-1) in all
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). To a rank that is
    ``apart``, on a host of its own, go n-1 and from it as many; in all these are 2(n-1), too.
    """
    if n < _PAIR:
        return
    if (its.being("send") | its.being("recv")).any():
        yield from _through_rank(its, n, apart=apart)
        yield from _around(its, n)
    else:
        yield from _through_root(its, n, apart=apart)
        yield from _in_turn(its.take(its.being("broadcast")), n)


def _through_root(its: _Rows, n: int, *, apart: bool) -> Iterator[HandMadeSum]:
    """A gather, of whose parts the root makes a sum, and then its broadcast or scatter."""
    rank, root = its.table.ints("rank"), its.table.ints("root")
    gathers = its.being("gather")
    first = np.flatnonzero(gathers[:-1] & ~gathers[1:])
    same = (rank[first] == rank[first + 1]) & (root[first] == root[first + 1])
    first = first[same & (root[first] != NULL)]
    roots, at_root = distinct(root[first]), first[rank[first] == root[first]]
    summed = np.count_nonzero((its.only & its.sums)[at_root])
    if roots.size != 1 or at_root.size < _SEVERAL:
        return
    if summed < _MOSTLY * np.count_nonzero(gathers & (rank == root)):
        return
    rows = its.take(np.sort(np.append(first, first + 1)))
    yield _sum("root", int(roots[0]), rows, n, 1 / n if apart else 1.0, sums=at_root.size)


def _in_turn(its: _Rows, n: int) -> Iterator[HandMadeSum]:
    """A broadcast by each rank in turn, of whose parts all make the sum."""
    if not its.row.size:
        return
    rank = its.table.ints("rank")
    root = its.table.ints("root")[rank == rank.min()]
    turns = root[: root.size // n * n].reshape(-1, n)
    all_do = (np.diff(np.sort(turns, axis=1), axis=1) > 0).all() and (root != NULL).all()
    if turns.shape[0] < _SEVERAL or not all_do:
        return
    if np.mean(its.sums) >= _MOSTLY and np.mean(its.only) >= _HALF:
        yield _sum("broadcasts", None, its, n, 2 / n, sums=turns.shape[0])


def _through_rank(its: _Rows, n: int, *, apart: bool) -> Iterator[HandMadeSum]:
    """Messages to a rank from all others, of which it makes a sum, and as many back."""
    rank, peer = its.table.ints("rank"), its.peer
    gets = its.being("recv")
    first = first_rows(codes(rank))
    receives_first = gets[first] if n == _PAIR else np.ones(first.size, np.bool_)
    often = np.bincount(rank) * np.bincount(rank[first], receives_first)
    root = int(np.argmax(often))
    mine = rank == root
    got, around = mine & gets, (rank != root) & (peer != root)
    sums = int(np.count_nonzero(got)) // (n - 1)
    if around.any() or distinct(peer[mine]).size != n - 1 or sums < _SEVERAL:
        return
    in_order = gets[np.flatnonzero(mine)[: n - 1]].all() and got.sum() == (mine & ~gets).sum()
    summed = np.count_nonzero((its.only & its.sums)[got]) >= _MOSTLY * sums
    if in_order and summed and np.mean(its.only[got]) >= _MOSTLY:
        rows = _summed_where(its, got)
        yield _sum("messages", root, rows, n, 1 / n if apart else 1.0, sums=sums)


def _around(its: _Rows, n: int) -> Iterator[HandMadeSum]:
    """Messages from each rank to the next of a ring, all of them summed by who gets them."""
    rank, peer = its.table.ints("rank"), its.peer
    gets = its.being("recv")
    each = [np.bincount(rank[way], minlength=rank.max() + 1) for way in (gets, ~gets)]
    per_rank = each[0][each[0] > 0]
    links = [first_rows(codes(rank[way], peer[way])).size for way in (gets, ~gets)]
    if n == _PAIR or links != [n, n] or per_rank.size != n or (each[0] != each[1]).any():
        return
    if (per_rank != per_rank[0]).any() or per_rank[0] % (n - 1) or per_rank[0] < _SEVERAL * (n - 1):
        return
    onward = dict(zip(rank[~gets].tolist(), peer[~gets].tolist(), strict=True))
    at, seen = int(rank[0]), set[int]()
    while at in onward and at not in seen:
        seen.add(at)
        at = onward[at]
    if len(seen) != n:  # several rings
        return
    if np.mean(its.sums[gets]) >= _MOSTLY and np.mean(its.only[gets]) >= _HALF:
        sums = int(per_rank[0]) // (n - 1)
        yield _sum("ring", None, _summed_where(its, gets), n, 2 / n, sums=sums)


def _summed_where(its: _Rows, got: Bool) -> _Rows:
    return its._replace(summing_ns=np.where(got, its.summing_ns, 0))


def _sum(
    way: Way, root: int | None, its: _Rows, n: int, needed: float, *, sums: int
) -> HandMadeSum:
    # Few bytes take no link's time: each of a ring's 2(n-1) steps takes as long as one of these.
    each = np.where(its.tensor_bytes >= SMALL_BYTES, needed, 1.0)
    return HandMadeSum(
        way=way,
        group_size=n,
        root=root,
        rows=its.row,
        operation=its.operation,
        tensor_bytes=its.tensor_bytes,
        needed=each,
        summing_ns=its.summing_ns,
        sums=sums,
    )
