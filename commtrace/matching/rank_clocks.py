"""How far each rank's clock is off, from when synchronising collectives ended.

Only ends can tell: a rank's start says when it arrived, not what time it is. Rooted
operations and point-to-point ones do not end everywhere at once and tell nothing; but where
little else ties two clocks, the messages of GPUs do, whose kernels are done at about the same
time. The ranks of one host have one clock, unless one of them is done before another has come.
So have ranks that seem to be of one host's GPUs, where none has a name and what they do together
ends together.
Where the recorder has read the clocks, that holds the ends to its bounds: over a link that
is slower in one direction they end apart, every time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import Int64, distinct
from commtrace.matching.clock_line import (
    CLOSE_NS,
    DRIFT,
    LINE_OPERATIONS,
    LINE_SPAN_NS,
    SAME,
    Line,
    fit,
    level,
)
from commtrace.matching.clock_table import CLOCK
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.ends import Ends, InCommon, by_clock, common, ends_of
from commtrace.matching.probes import Probed
from commtrace.quantiles import median
from commtrace.table import Rows

__all__ = [
    "END_ERROR_NS",
    "SAME_HOST_ERROR_NS",
    "TELLING",
    "RankClock",
    "clock",
    "readings",
]

SAME_HOST_ERROR_NS = 1_000  # one clock for all; what is left is the reading of it
END_ERROR_NS = 5_000  # ends of one collective differ by this much on any real machine
TELLING = 4  # messages: fewer end together by chance
FEW = 8  # operations whose spread is not known from themselves
CONTRADICTED = 0.1  # the share of impossible operations that denies ranks one clock
APART_NS = 60_000  # processes on one host read its GPUs' clocks up to 50 us apart
ALWAYS = 0.1  # of that by which operations end apart: so little they scatter about it
MEDIAN = 1.2533  # the standard error of a median is this much that of a mean
MAD = 1.4826  # the standard deviation behind a median absolute deviation


class RankClock(Struct, frozen=True):
    """How far a rank's clock is ahead of the lowest rank's; ``line`` is None if unknown."""

    clock: int
    line: Line | None = None
    drifts: bool = False
    error_ns: float = 0.0
    operations: int = 0
    provenance: str | None = None


def clock(rows: Collectives, matches: Rows) -> Rows:
    """Offset, drift and error of every rank's clock against the lowest rank's: CLOCK.

    Theil-Sen line through end-time differences of shared operations, or their median
    where the span is short or the operations few. Ranks of one host share a clock, and
    are believed unless causality contradicts it: every arrival <= every end.
    """
    of_rank = readings(rows, matches.ints("operation"))
    reference = None if rows.lowest is None else of_rank[rows.lowest].line
    start, end = _span(rows, Line(-reference.level_ns) if reference else SAME)
    return CLOCK.of_dicts([_row(rank, one, start, end) for rank, one in of_rank.items()])


def _row(rank: int, one: RankClock, start: int, end: int) -> dict[str, Any]:
    at_ns = start // 2 + end // 2 + (int(one.line.level_ns) if one.line else 0)
    line = one.line and one.line.at(at_ns)
    # A drift that is not sure enough to be stated leaves this much to either side.
    drift_ns = abs(line.slope) * (end - start) / 2 if line and not one.drifts else 0.0
    return {
        "rank": rank,
        "clock": one.clock,
        "offset_ns": None if line is None else round(line.level_ns),
        "drift_ppm": line.slope * 1e6 if line and one.drifts else None,
        "error_ns": None if line is None else round(one.error_ns + drift_ns),
        "at_ns": at_ns,
        "operations": one.operations,
        "provenance": one.provenance,
    }


def readings(rows: Collectives, number: Int64) -> dict[int, RankClock]:
    """Each rank's clock, given each row's operation (-1 if unknown), by ascending rank."""
    ends = ends_of(rows, number, rows.synchronises)
    clock_of = _one_clock_each(rows, ends)
    lowest, every = _reference(rows, clock_of), set(clock_of.values())
    known = {lowest: RankClock(lowest, SAME, drifts=True, provenance="host")}
    together = by_clock(ends, clock_of)
    _reach(rows, known, together, len(every), (LINE_OPERATIONS, FEW))
    if len(known) < len(every):
        met = rows.synchronises | (rows.p2p & ~rows.on_cpu)
        shared = by_clock(ends_of(rows, number, met), clock_of)
        _reach(rows, known, shared, len(every), (LINE_OPERATIONS,))
        _reach(rows, known, together, len(every), (1,))
        _reach(rows, known, shared, len(every), (TELLING,))
    best = _best_probes(rows, clock_of)
    for far in every - {lowest}:
        bound = _probed(rows, clock_of, best, lowest, far)
        known[far] = _believed(known.get(far, RankClock(far)), bound)
    return {
        rank: _same_host(known.get(one, RankClock(one)), lowest, rank)
        for rank, one in sorted(clock_of.items())
    }


def _reach(
    rows: Collectives,
    known: dict[int, RankClock],
    shared: dict[int, Ends],
    count: int,
    least: Sequence[int],
) -> None:
    """Add to the known clocks, until there are so many, those that share ends with them.

    As few links between two clocks as can be, of the first of so many ends before those of others.
    """
    in_common = InCommon(shared)
    for fewest in least:
        for near in (reached := list(known)):
            if len(known) == count:
                break
            for far in in_common.clocks(near, fewest):
                if far not in known:
                    link = _link(rows, known[near], shared[near], shared[far])
                    known[far] = _behind(known[near], link, far)
                    reached.append(far)


def _reference(rows: Collectives, clock_of: dict[int, int]) -> int:
    """The lowest rank's clock, unless nothing can tie another to it."""
    tied = {*distinct(rows.rank).tolist(), *(rank for rank in rows.probes if rank in clock_of)}
    return min((clock_of[rank] for rank in tied), default=min(clock_of, default=0))


def _one_clock_each(rows: Collectives, ends: dict[int, Ends]) -> dict[int, int]:
    """The lowest rank that has the same clock as each: of its host, and not contradicted.

    Of a host that any two contradict only those whose operations end together.
    """
    clock_of: dict[int, int] = {}
    for ranks in _ranks_by(rows.clock_of):
        left = ranks
        its = {rank: ends.get(rank) for rank in ranks}
        while left:
            first = left[0]
            one = [r for r in left if not _contradict(its[first], its[r])]
            if one != ranks:
                one = [r for r in one if r == first or _end_together([its[first], its[r]])]
            clock_of |= dict.fromkeys(one, first)
            left = [r for r in left if r not in clock_of]
    for ranks in _ranks_by(rows.likely_clock_of):
        if _end_together([ends.get(rank) for rank in ranks]):
            clock_of |= dict.fromkeys(ranks, ranks[0])
    return clock_of


def _ranks_by(clock_of: dict[int, int]) -> list[list[int]]:
    """The ranks of each clock, ascending."""
    clocks: dict[int, list[int]] = {}
    for rank, one in sorted(clock_of.items()):
        clocks.setdefault(one, []).append(rank)
    return [*clocks.values()]


def _end_together(ends: list[Ends | None]) -> bool:
    """Whether what any two of these saw ended for both at about the same time, and ties all."""
    part = list(range(len(ends)))
    for (one, a), (other, b) in combinations(enumerate(ends), 2):
        if a is None or b is None:
            continue
        in_a, in_b = common(a, b)
        if in_a.size and abs(median(a.end[in_a] - b.end[in_b])) > CLOSE_NS:
            return False
        if in_a.size:
            part = [part[one] if its == part[other] else its for its in part]
    return len(set(part)) == 1


def _contradict(a: Ends | None, b: Ends | None) -> bool:
    """Whether one rank was done before the other came, so that they cannot share a clock.

    Of more than a few operations, or of GPUs' that all end apart by the same.
    """
    if a is None or b is None or a is b:
        return False
    in_a, in_b = common(a, b)
    impossible = (a.start[in_a] > b.end[in_b] + CLOSE_NS) | (b.start[in_b] > a.end[in_a] + CLOSE_NS)
    if impossible.sum() > CONTRADICTED * in_a.size:
        return True
    on_gpus = not a.on_cpu[in_a].any()
    return bool(impossible.any()) and on_gpus and _end_apart(a.end[in_a] - b.end[in_b])


def _end_apart(apart_ns: Int64) -> bool:
    """Whether operations, not few, always end apart by far more than they do on any machine."""
    if apart_ns.size < FEW:
        return False
    usual_ns = median(apart_ns)
    scatter_ns = MAD * median(np.abs(apart_ns - usual_ns))
    return abs(usual_ns) > APART_NS and scatter_ns < ALWAYS * abs(usual_ns)


def _span(rows: Collectives, offset: Line = SAME) -> tuple[int, int]:
    """First start and last end of any operation of the lowest rank that has some.

    On a clock that is ``offset`` ahead of its.
    """
    start, end = rows.span
    return start + int(offset.level_ns), end + int(offset.level_ns)


def _link(rows: Collectives, near: RankClock, a: Ends, b: Ends) -> RankClock:
    """How far clock b is ahead of the near clock, a, with which it shares operations."""
    assert near.line is not None
    in_a, in_b = common(a, b)
    times = b.end[in_b]
    offsets = times - a.end[in_a]
    drifts = bool(times.size >= LINE_OPERATIONS and np.ptp(times) >= LINE_SPAN_NS)
    line = fit(times, offsets) if drifts else level(times, offsets)
    error = _error(a.end[in_a], offsets - line(times), _span(rows, near.line), drifts)
    if times.size < FEW:
        error += 3 * float(np.abs(offsets - line(times)).max())
    if times.size < 3:  # which agree by chance; what both took part in at once bounds it
        error += float((times - b.start[in_b]).max())
    if (by_cpu := a.on_cpu[in_a]).any():
        error = max(error, _causal(a, b, in_a[by_cpu], in_b[by_cpu], line))
    return RankClock(0, line, drifts, error, int(times.size), "operations")


def _causal(a: Ends, b: Ends, in_a: Int64, in_b: Int64, line: Line) -> float:
    """How far off an offset can be before an operation ends on one clock and begins on another.

    All that is known of work by CPUs: over a link that is slower in one direction their
    operations end apart, every time.
    """
    offset = line(b.end[in_b])
    most = (b.end[in_b] - a.start[in_a] - offset).min()
    least = (b.start[in_b] - a.end[in_a] - offset).max()
    return float(max(most, -least))


def _error(times: Int64, rest: Int64, span: tuple[int, int], drifts: bool) -> float:
    """Three standard errors of the line where the run is farthest from the operations.

    As for a least-squares line, with the spread taken robustly; of a drift that cannot be
    fitted, all that it can be.
    """
    spread = MAD * median(np.abs(rest))
    level = 3 * MEDIAN * spread / np.sqrt(times.size)
    centre = float(np.mean(times - times[0]))
    far = max(abs(float(end - times[0]) - centre) for end in span)
    if not drifts:
        return float(level) + DRIFT * far + END_ERROR_NS
    leverage = far / float(np.std(times - times[0]))
    return float(level) * float(np.hypot(1.0, leverage)) + END_ERROR_NS


def _behind(near: RankClock, link: RankClock, far: int) -> RankClock:
    """A clock's reading, through another's."""
    assert near.line is not None
    assert link.line is not None
    return RankClock(
        far,
        link.line.plus(near.line),
        near.drifts and link.drifts,
        float(np.hypot(near.error_ns, link.error_ns)),
        link.operations,
        link.provenance,
    )


def _best_probes(rows: Collectives, clock_of: dict[int, int]) -> dict[int, Probed]:
    """The closest of the recorder's readings of each clock."""
    best: dict[int, Probed] = {}
    for rank, probe in sorted(rows.probes.items(), key=lambda one: one[1].error_ns):
        best.setdefault(clock_of.get(rank, rank), probe)
    return best


def _probed(
    rows: Collectives, clock_of: dict[int, int], best: dict[int, Probed], near: int, far: int
) -> RankClock | None:
    """How far one clock is ahead of another by the recorder's readings; None without."""
    if near not in best or far not in best:
        return None
    ours, theirs = best[near], best[far]
    reference = ours if rows.lowest is None else best.get(clock_of[rows.lowest], ours)
    span = _span(rows, Line(-reference.line.level_ns))  # on rank 0's clock
    return RankClock(
        far,
        theirs.line.less(ours.line),
        ours.drifts and theirs.drifts,
        ours.error_over(span) + theirs.error_over(span) + END_ERROR_NS,
        provenance="probe",
    )


def _believed(ends: RankClock, bound: RankClock | None) -> RankClock:
    """The closer of two readings of a clock, unless ends contradict the bound."""
    if bound is None:
        return ends
    if ends.line is None or bound.line is None:
        return bound
    offset = abs(ends.line.level_ns - bound.line.at(ends.line.at_ns).level_ns)
    agree = offset <= ends.error_ns + bound.error_ns
    return ends if agree and ends.error_ns <= bound.error_ns else bound


def _same_host(reading: RankClock, lowest: int, rank: int) -> RankClock:
    if reading.clock != lowest or rank == lowest:
        return reading
    return structs.replace(reading, error_ns=SAME_HOST_ERROR_NS)
