"""Sends and the recvs that took what they sent.

They pair by source, destination and order. The counters of point-to-point operations
(``Seq`` and ``Comms Id``, which is made from it) count all of a rank's own, so that they
differ on the two ends: they are believed only where they agree with the order.

Counting is right where both were there before either was done, whatever one end recorded
behind the other's last; from the second on, or the third, where one end's window opened that
much later. Where that fails, events were
lost, and it is the ends that agree in time that belong together; unless few do, as where
small messages are on their way before anybody waits for them: then counting is right as
long as nothing was received before it was sent. Where nothing ties the two ends' clocks, messages
of GPUs are counted that ended together but for a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from commtrace.arrays import NULL, Int64, codes, nth
from commtrace.matching.assignment import ALIGNMENT, COMMS_ID, ORDER, Found
from commtrace.matching.clock_line import Line, level
from commtrace.matching.collective_arrays import Collectives, split
from commtrace.matching.rank_clocks import TELLING, RankClock
from commtrace.matching.sequence import MARGIN_NS, Part, Sequence

__all__ = ["pair"]

UNBROKEN = 0.9
MOST = 0.5
_SKIPPED = 2


_Pairs = tuple[Int64, Int64]
"""Rows of sends, and of the recv of each."""


def pair(rows: Collectives, found: Found, clocks: Mapping[int, RankClock]) -> None:
    """Match sends with recvs; those whose peer is unknown stay alone."""
    chosen = np.flatnonzero(rows.p2p & (rows.peer != NULL))
    together = codes(rows.rank, rows.start, rows.end, rows.peer, rows.sends, rows.signature)
    signature = codes(rows.signature, nth(together))
    for sends, recvs in _ends(rows, chosen):
        line = _offset(rows, clocks, sends[0], recvs[0])
        how, (a, b) = _matched(rows, signature, sends, recvs, line)
        found.new(a)
        found.evidence[a] = how
        found.join(b, found.number[a], how)


def _matched(
    rows: Collectives, signature: Int64, sends: Int64, recvs: Int64, line: Line | None
) -> tuple[int, _Pairs]:
    counted = _counted(rows, sends, recvs)
    if line is None:
        for how, pairs in counted.items():
            if _tie(rows, pairs):
                return how, pairs
        counted = {}
    for how, pairs in counted.items():
        if line is not None and _possible(rows, pairs, line, both=True):
            return how, pairs
    for pairs in _later(sends, recvs):
        if line is not None and _possible(rows, pairs, line, both=True):
            return ALIGNMENT, pairs
    aligned = _aligned(rows, signature, sends, recvs, line)
    for how, pairs in counted.items():
        if line is None or _agree(rows, aligned, pairs, line):
            break
        if _possible(rows, pairs, line, both=False):
            return how, pairs
    return ALIGNMENT, aligned


def _ends(rows: Collectives, chosen: Int64) -> Iterator[tuple[Int64, Int64]]:
    """For each source and destination the sends and the recvs, in their order, if any of both."""
    sends, rank, peer = rows.sends[chosen], rows.rank[chosen], rows.peer[chosen]
    source, target = np.where(sends, rank, peer), np.where(sends, peer, rank)
    link = codes(rows.communicator[chosen], source, target)
    order = np.lexsort((rows.called[chosen], link))
    for at in split(chosen[order], link[order]):
        out = rows.sends[at]
        if out.any() and not out.all():
            yield at[out], at[~out]


def _offset(
    rows: Collectives, clocks: Mapping[int, RankClock], send: int, recv: int
) -> Line | None:
    """How far the receiver's clock is ahead of the sender's."""
    a, b = clocks[int(rows.rank[send])], clocks[int(rows.rank[recv])]
    if a.clock == b.clock:
        return Line(0.0)
    return b.line.less(a.line) if a.line is not None and b.line is not None else None


def _counted(rows: Collectives, sends: Int64, recvs: Int64) -> dict[int, _Pairs]:
    """The pairs that counting tells, best first."""
    pairs = {COMMS_ID: _by_id(rows, sends, recvs)}
    if sends.size == recvs.size:
        pairs[ORDER] = (sends, recvs)
    return {how: each for how, each in pairs.items() if each[0].size}


def _later(sends: Int64, recvs: Int64) -> Iterator[_Pairs]:
    """In their order, but the first few of one end, and what is left of the other's last."""
    most = min(_SKIPPED, min(sends.size, recvs.size) // 3)
    shifts = [shift for skipped in range(1, most + 1) for shift in ((skipped, 0), (0, skipped))]
    if sends.size != recvs.size:  # else that is counting
        shifts.insert(0, (0, 0))
    for of_sends, of_recvs in shifts:
        a, b = sends[of_sends:], recvs[of_recvs:]
        count = min(a.size, b.size)
        yield a[:count], b[:count]


def _by_id(rows: Collectives, sends: Int64, recvs: Int64) -> tuple[Int64, Int64]:
    """The pairs of the same Comms Id, unless that skips some on one end."""
    a, b = (side[rows.comms_id[side] >= 0] for side in (sends, recvs))
    _, in_a, in_b = np.intersect1d(rows.comms_id[a], rows.comms_id[b], return_indices=True)
    order = np.argsort(in_a)
    in_a, in_b = in_a[order], in_b[order]
    span = max((int(np.ptp(side)) + 1 for side in (in_a, in_b) if side.size), default=0)
    if (np.diff(in_b) < 0).any() or in_a.size < UNBROKEN * span:
        return a[:0], b[:0]
    return a[in_a], b[in_b]


def _possible(rows: Collectives, pairs: _Pairs, line: Line, *, both: bool) -> bool:
    """Whether pairs are alike, and nothing was received before it was sent.

    With ``both``, nor was anything sent before somebody was there to receive it.
    """
    sends, recvs = pairs
    if (rows.signature[sends] != rows.signature[recvs]).any():
        return False
    offset = line(rows.end[recvs])
    late = rows.called[sends] > rows.end[recvs] - offset + MARGIN_NS
    if both:
        late |= rows.called[recvs] - offset > rows.end[sends] + MARGIN_NS
    return not late.any()


def _tie(rows: Collectives, pairs: _Pairs) -> bool:
    """Whether pairs, of which no clock tells, are of GPUs, alike, and ended together."""
    sends, recvs = pairs
    if rows.on_cpu[sends].any() or (rows.signature[sends] != rows.signature[recvs]).any():
        return False
    end = rows.end[recvs]
    return sends.size >= TELLING and _agree(rows, pairs, pairs, level(end, end - rows.end[sends]))


def _agree(rows: Collectives, aligned: _Pairs, counted: _Pairs, line: Line) -> bool:
    """Whether most pairs ended together."""
    sends, recvs = aligned
    offset = rows.end[recvs] - line(rows.end[recvs]) - rows.end[sends]
    return int((np.abs(offset) <= MARGIN_NS).sum()) > MOST * counted[0].size


def _aligned(
    rows: Collectives, signature: Int64, sends: Int64, recvs: Int64, line: Line | None
) -> _Pairs:
    """The pairs that ended together."""
    sequence, a, b = Sequence(), Part(rows, sends, signature), Part(rows, recvs, signature)
    sequence.add(a, np.arange(a.place.size), Line(0.0))
    place, _ = sequence.find(b, np.full(b.place.size, -1), line)
    return a.place[place[place >= 0]], b.place[place >= 0]
