"""Which ranks are the stages of a pipeline, by the messages that they hand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Int64,
    codes,
    distinct,
    first_rows,
    in_order,
    least,
    most,
    nth,
    numbered,
    rows_by,
    sums,
)
from commtrace.diagnosis import too_few
from commtrace.metrics.run.joined_rows import joined_messages
from commtrace.quantiles import median
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Messages", "chains_of", "messages_of"]

_MOST = 0.5  # of the steps
_HEADER_BYTES = 1024
_AT_ONCE = 0.1  # of the time from one message that is handed on to the next
_SAME = 0.25  # of the sends: of two ranks served together one follows its own message


class Messages(Struct, frozen=True, eq=False):
    """Rows of sends and recvs, with the ranks of both sides."""

    rows: Rows
    sender: Int64
    receiver: Int64

    def take(self, which: Bool | Int64) -> Messages:
        """Some of them."""
        return Messages(self.rows.take(which), self.sender[which], self.receiver[which])

    def of(self, ranks: list[int]) -> Messages:
        """The rows of some ranks."""
        return self.take(np.isin(self.rows.ints("rank"), ranks))

    @property
    def ranks(self) -> Int64:
        """Those of the rows."""
        return distinct(self.rows.ints("rank"))

    @property
    def link(self) -> Int64:
        """A number for the two ranks of each message, whichever of them sends."""
        ends = self.sender, self.receiver
        return codes(np.minimum(*ends), np.maximum(*ends))

    @property
    def has_steps(self) -> bool:
        """Whether any is known to be of a step."""
        return bool((self.rows.ints("step") != NULL).any())

    @property
    def per_step(self) -> int:
        """How many go over a link one way in a step, or in all of a run without steps.

        Without headers, where there are messages that can have one.
        """
        sends = self.loads
        link = codes(sends.rows.ints("step"), sends.sender, sends.receiver)
        once = first_rows(codes(link, sends.rows.ints("operation")))
        return int(median(np.bincount(link[once])))

    @property
    def chunks(self) -> int:
        """How many parts of the model each stage has: where the last one hands on to the first.

        Over that link goes what goes over the others, both ways if it does there, but for the last
        part (interleaved 1F1B, arXiv:2104.04473). Else the ring is another: 1.
        """
        its = self.loads
        if not its.is_ring:
            return 1
        link, up, size = its.link, its.sender < its.receiver, its.rows.ints("size_bytes")
        count = np.bincount(link)
        usual, fewest = int(median(count)), int(count.min())
        closes = link == count.argmin()
        alike = {
            (median(size[some]), up[some].all() | ~up[some].any()) for some in (closes, ~closes)
        }
        chunks, left = divmod(usual, max(usual - fewest, 1))
        return chunks if len(alike) == 1 and fewest < usual and not left else 1

    @property
    def is_ring(self) -> bool:
        """Whether as many links as ranks tie them together, one more than in a chain."""
        ranks = distinct(np.append(self.sender, self.receiver))
        return distinct(self.link).size == ranks.size

    @property
    def largest_share(self) -> float:
        """What the largest message over a link one way in a step holds of the bytes of all.

        The median, without headers. NaN where sizes are unknown, and where the largest is at the
        same place in every step: then a micro-batch may be of several tensors.
        """
        sends = self.loads
        size = sends.rows.ints("size_bytes")
        if (size == NULL).any() or not size.any():
            return np.nan
        link = codes(sends.sender, sends.receiver)
        cell = codes(link, sends.rows.ints("step"))
        largest = most(cell, size, int(cell.max()) + 1)
        first = np.flatnonzero(size == largest[cell])
        first = first[first_rows(cell[first])]
        where, place, count = link[first], nth(cell)[first], int(link.max()) + 1
        if (least(where, place, count) == most(where, place, count)).all():
            return np.nan
        return median(largest / sums(cell, size, largest.size).clip(min=1))

    @property
    def take_turns(self) -> bool:
        """Whether the first stage awaits what comes back of each message before it sends another.

        The first is the one that in each step sends before it receives.
        """
        size = self.rows.ints("size_bytes")
        its = self.rows.take((size == NULL) | (size >= _HEADER_BYTES))
        rank, step = its.ints("rank"), its.ints("step")
        order = in_order(rank, step, its.ints("arrival_ns"))
        sends = its.coded("op").being("send")[order]
        turn = codes(rank, step)[order]
        begins, again = np.diff(turn, prepend=-1) != 0, np.append(False, sends[1:] & sends[:-1])
        starts = np.bincount(turn, begins & sends) > 0  # of each rank's steps
        of_first = starts[turn]
        alone = distinct(rank[order][of_first]).size == 1
        return alone and not bool((again & ~begins & of_first).any())

    @property
    def come_back(self) -> bool:
        """Whether what goes over a link comes back as large: an activation, then its gradient."""
        sends = self.loads
        size = {
            way: _median(sends.rows.ints("size_bytes")[at])
            for way, at in rows_by(sends.sender, sends.receiver).items()
        }
        return size == {way[::-1]: its for way, its in size.items()}

    @property
    def is_pipeline(self) -> bool:
        """Whether a chain of ranks hands on micro-batches, or what comes back as a gradient.

        Else who makes something that another uses once a step is like it.
        """
        return self.per_step > 1 or self.come_back

    @property
    def sends(self) -> Messages:
        """Each message once: where it is sent."""
        return self.take(self.rows.coded("op").being("send"))

    @property
    def loads(self) -> Messages:
        """Each message once, but for shapes and types that go ahead of what has them."""
        sends = self.sends
        size = sends.rows.ints("size_bytes")
        loads = (size == NULL) | (size >= _HEADER_BYTES)
        return sends.take(loads) if loads.any() else sends


def messages_of(run: Measures, min_operations: int) -> Messages:
    """The rows of sends and recvs whose other side is there; CannotLook if these are too few."""
    rows = joined_messages(run)
    known = (rows.ints("peer") != NULL) & (rows.ints("skew_ns") != NULL)
    rows = rows.take(known & (rows.ints("present") == 2))
    if (count := distinct(rows.ints("operation")).size) < min_operations:
        raise too_few(count, "send", min_operations, "matched with their recv")
    sends, rank, peer = rows.coded("op").being("send"), rows.ints("rank"), rows.ints("peer")
    return Messages(rows, np.where(sends, rank, peer), np.where(sends, peer, rank))


def _median(values: Int64) -> float | None:
    known = values[values != NULL]
    return median(known) if known.size else None


def chains_of(messages: Messages) -> Iterator[tuple[list[int], Messages]]:
    """The ranks of each pipeline, and its messages."""
    share, rows_of = _handed_on(messages.rows), rows_by(messages.rows.ints("rank"))
    for chain in _chains(messages):
        rows = [rows_of[rank,] for rank in chain if (rank,) in rows_of]
        mine = messages.take(np.sort(np.concatenate(rows)))
        if _hand_on(chain, share, mine):
            yield chain, mine


def _chains(messages: Messages) -> list[list[int]]:
    """The groups of ranks whose links are a path, or a ring: each has two neighbours at most."""
    pairs = rows_by(messages.sender, messages.receiver)
    links = {(min(pair), max(pair)) for pair in pairs}
    degree = Counter(rank for link in links for rank in link)
    home = {rank: {rank} for rank in degree}
    for a, b in links:
        together = home[a] | home[b]
        home.update(dict.fromkeys(together, together))
    groups = {tuple(sorted(group)) for group in home.values()}
    return [
        list(group)
        for group in sorted(groups)
        if max(degree[rank] for rank in group) <= 2
        and sum(link[0] in group for link in links) in (len(group) - 1, len(group))
    ]


def _handed_on(rows: Rows) -> dict[int, float]:
    """Of each rank the share of its steps in which it sends only what it received before."""
    rows = rows.take(rows.ints("step") != NULL)
    step, is_send = numbered(rows.ints("rank"), rows.ints("step")), rows.coded("op").being("send")
    first = first_rows(step)
    sent = least(step[is_send], rows.ints("arrival_ns")[is_send], first.size)
    received = least(step[~is_send], rows.ints("end_ns")[~is_send], first.size)
    after = sent >= received  # a step without one of them has the end of time for it
    by_rank = rows_by(rows.ints("rank")[first])
    return {rank: float(after[steps].mean()) for (rank,), steps in by_rank.items()}


def _exchange(messages: Messages) -> bool:
    """Whether most messages are under way while one as large comes back, as in an exchange.

    The borders of a grid, say. What a pipeline sends back depends on what has arrived.
    """
    sends, operation = messages.sends, messages.rows.ints("operation")
    end = most(operation, messages.rows.ints("end_ns"), int(operation.max()) + 1)
    sent, size = sends.rows.ints("arrival_ns"), sends.rows.ints("size_bytes")
    got = end[sends.rows.ints("operation")]
    kinds = rows_by(sends.sender, sends.receiver, size)
    ways = {kind: at[np.argsort(sent[at])] for kind, at in kinds.items()}
    count = crossing = 0
    for (one, other, its_size), at in ways.items():
        back = ways.get((other, one, its_size), at[:0])
        there, here = at[: back.size], back[: at.size]
        count += at.size
        crossing += int(((sent[there] < got[here]) & (sent[here] < got[there])).sum())
    return 2 * crossing > count


def _hand_on(chain: list[int], share: dict[int, float], mine: Messages) -> bool:
    """Whether all ranks but the first stage send in most steps only what they received before.

    And the rank in the middle of three does not serve the others. A run without steps begins
    anywhere in its schedule, and tells only what passes each other, or is handed on at once; of a
    ring it tells nothing. Else a ring is a pipeline if it is interleaved.
    """
    if len(chain) == 3 and _middle_serves(mine):
        return False
    if not mine.has_steps:
        return not (mine.is_ring or _exchange(mine) or _relay(mine))
    if mine.loads.is_ring and mine.chunks == 1:
        return False
    of_chain = sorted(share[rank] for rank in chain if rank in share)
    return all(one >= _MOST for one in of_chain[1:]) and not _relay(mine)


def _relay(messages: Messages) -> bool:
    """Whether ranks between two others hand on at once, so that they work on nothing they receive.

    As where neighbours exchange the edges of their domains one after the other.
    """
    rank, peer = (messages.rows.ints(name) for name in ("rank", "peer"))
    pauses, between = [], []
    for at in rows_by(rank).values():
        if distinct(peer[at]).size < 2:  # an end
            continue
        its = messages.rows.take(at)
        sent, last = _last_received(its)
        other = its.ints("peer")[sent] != its.ints("peer")[last]
        begun = its.ints("arrival_ns")[sent[other]]
        pauses.append(begun - its.ints("end_ns")[last[other]])
        between.append(np.diff(np.sort(begun)))
    if not any(apart.size for apart in between):
        return False
    return median(np.concatenate(pauses)) < _AT_ONCE * median(np.concatenate(between))


def _last_received(its: Rows) -> tuple[Int64, Int64]:
    """Of one rank's rows the sends, and what it had received last before each."""
    is_send, end_ns = its.coded("op").being("send"), its.ints("end_ns")
    sent = np.flatnonzero(is_send)
    done = np.flatnonzero(~is_send)[np.argsort(end_ns[~is_send], kind="stable")]
    last = np.searchsorted(end_ns[done], its.ints("arrival_ns")[sent], side="right") - 1
    known = last >= 0
    return sent[known], done[last[known]]


def _middle_serves(messages: Messages) -> bool:
    """Whether the rank between two others answers who sent to it, as a server does.

    What it sends then often follows a message from the very receiver. The middle stage of a
    pipeline sends to one neighbour what it made of the other's, either way.
    """
    rank, peer = (messages.rows.ints(name) for name in ("rank", "peer"))
    middle = max(distinct(rank).tolist(), key=lambda one: distinct(peer[rank == one]).size)
    its = messages.rows.take(rank == middle)
    sent, last = _last_received(its)
    same = its.ints("peer")[sent] == its.ints("peer")[last]
    return same.size > 0 and float(same.mean()) >= _SAME
