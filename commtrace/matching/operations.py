"""Rows of different ranks that are one operation, and how that is known.

In order of trust: an identifier that the trace gives every rank (``comms-id``), the
group's sequence number (``sequence``, or ``flight-recorder`` where it comes from there),
else the ranks' sequences aligned on what the operations are and when they end
(``alignment``). A position in a sequence alone is never enough: a window that opened
late, or one lost event, would shift everything behind it. A send and its recv: ``pairs``.
"""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Int64, codes, distinct, nth
from commtrace.matching.any_source import with_sources
from commtrace.matching.assignment import ALIGNMENT, EVIDENCE, Found
from commtrace.matching.clock_line import Line
from commtrace.matching.collective_arrays import Collectives, split
from commtrace.matching.match_by_id import keyed
from commtrace.matching.pairs import pair
from commtrace.matching.peers_by_time import with_neighbours
from commtrace.matching.rank_clocks import readings
from commtrace.matching.sequence import Part, Sequence
from commtrace.table import Coded, Column, Rows, Table

__all__ = ["MATCHES", "matches_of"]

MATCHES = Table(
    "matches",
    "one row of `collectives`, in the same order",
    (
        Column("operation", "int64", "The operation's number: equal on every rank that took part."),
        Column(
            "communicator",
            "category",
            "The process group's identity across ranks: its global ranks, and its name where "
            "several have these; null if unknown.",
        ),
        Column(
            "matched_by",
            "category",
            "`comms-id`, `sequence`, `flight-recorder`, `alignment` (by kind and time) or "
            "`order` (of sends and recvs); null where no other rank's row was matched.",
        ),
        Column("present", "int64", "Ranks whose rows were matched for this operation.", "ranks"),
        Column("expected", "Int64", "Ranks that took part in it; null if unknown.", "ranks"),
    ),
)


def matches_of(rows: Collectives) -> Rows:
    """Number the operations of a trace across its ranks: MATCHES, aligned with collectives."""
    found = keyed(rows)
    _align(rows, found)
    if rows.p2p.any():
        clocks = readings(rows, found.number)
        pair(with_sources(with_neighbours(rows, clocks), clocks), found, clocks)
    found.new(np.flatnonzero(found.number < 0))
    number = codes(found.number)
    present = np.bincount(number)[number]
    evidence = np.where(present > 1, found.evidence, -1)
    return MATCHES.rows(
        {
            "operation": number,
            "communicator": Coded(rows.communicator.astype(np.int32), rows.communicators),
            "matched_by": Coded(evidence.astype(np.int32), EVIDENCE),
            "present": present,
            "expected": rows.expected,
        }
    )


def _align(rows: Collectives, found: Found) -> None:
    """Match the collectives that no identifier does, the communicators with most rows first."""
    loose = (found.number < 0) & ~rows.p2p & rows.known & _possible(rows)
    if not loose.any():
        return
    together = codes(rows.rank, rows.start, rows.end, rows.communicator, rows.signature)
    distinct = codes(rows.signature, nth(together))
    clocks = readings(rows, found.number)
    lines = {rank: reading.line for rank, reading in clocks.items() if reading.line is not None}
    lines = lines if len(lines) > 1 else {}
    for at in _by_size(rows, np.flatnonzero(~rows.p2p & (loose | (found.number >= 0)))):
        if not loose[at].any():
            continue
        signature = np.full(loose.size, -1, dtype=np.int64)
        signature[at] = codes(distinct[at])
        parts = [Part(rows, mine, signature) for mine in _by_rank(rows, at)]
        known = any(_rank(rows, part) in lines for part in parts)
        _Aligned(rows, found, lines if known or not lines else {}).take(parts)


class _Aligned:
    """One communicator's parts, put together; ``lines`` are the ranks' clocks, and grow."""

    def __init__(self, rows: Collectives, found: Found, lines: dict[int, Line]) -> None:
        self.rows, self.found, self.lines = rows, found, lines
        self.sequence = Sequence()

    def take(self, parts: list[Part]) -> None:
        """Start with ranks whose clock is known, then with those that tell most."""
        for part in sorted(parts, key=lambda p: (self._known(p) is None, -p.place.size)):
            self._add(part)

    def _known(self, part: Part) -> Line | None:
        """A rank's line, or that of its host."""
        rank, clock_of = _rank(self.rows, part), self.rows.clock_of
        if rank in self.lines:
            return self.lines[rank]
        others = (r for r in self.lines if clock_of[r] == clock_of[rank])
        return next((self.lines[other] for other in others), None)

    def _add(self, part: Part) -> None:
        found, before = self.found, self.found.number[part.place]
        number, line = self.sequence.find(part, before, self._known(part))
        matched = (before < 0) & (number >= 0)
        found.join(part.place[matched], number[matched], ALIGNMENT)
        # An operation without number here may have had one there.
        met = (before >= 0) & (number != before)
        if met.any():
            self.sequence.renumber(found.merge(number[met], before[met], self.rows.rank))
        self._show(np.concatenate((number[matched], before[met])))
        found.new(part.place[number < 0])
        if line is not None:
            self.lines.setdefault(_rank(self.rows, part), line)
            self.sequence.add(part, found.number[part.place], line)

    def _show(self, number: Int64) -> None:
        """What was alone until now is aligned too."""
        found = self.found
        ours = np.flatnonzero(np.isin(found.number, number) & (found.evidence < 0))
        found.evidence[ours] = ALIGNMENT


def _possible(rows: Collectives) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows whose group is known, or so large that all ranks of unknown groups can be in one.

    Where the size is not known, either, all groups that the trace lists have to be of one set.
    """
    unknown = rows.communicator < 0
    ranks = distinct(rows.rank[unknown & ~rows.p2p]).size
    fits: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.where(
        rows.expected == NULL, rows.is_one, rows.expected >= ranks
    )
    return ~unknown | fits


def _by_size(rows: Collectives, chosen: Int64) -> list[Int64]:
    order = chosen[np.argsort(rows.communicator[chosen], kind="stable")]
    return sorted(split(order, rows.communicator[order]), key=len, reverse=True)


def _by_rank(rows: Collectives, at: Int64) -> list[Int64]:
    at = at[np.argsort(rows.rank[at], kind="stable")]
    return split(at, rows.rank[at])


def _rank(rows: Collectives, part: Part) -> int:
    return int(rows.rank[part.place[0]])
