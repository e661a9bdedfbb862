"""One communicator's operations, as its ranks tell them one after the other."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.matching.align import Marks, clock_line, nearest_left, partners
from commtrace.matching.clock_line import CLOSE_NS, SAME, Line, fit
from commtrace.matching.collective_arrays import Collectives

__all__ = ["MARGIN_NS", "Part", "Sequence"]

MARGIN_NS = 50_000  # what the clocks may be off when causality is checked
ALWAYS, NEVER = -(2**62), 2**62
ENOUGH = 0.5  # of a rank's operations; with fewer a clock that was trusted is put to the vote


class Part:
    """One rank's rows, in the order of their ends.

    ``signature`` distinguishes what began and ended together; ``issued`` is the order of calls.
    ``awaited`` and ``awaits`` are those of the rows, ``meets`` where both are: all for all.
    """

    def __init__(self, rows: Collectives, at: Int64, signature: Int64) -> None:
        order = np.argsort(rows.end[at], kind="stable")
        self.place = at[order]
        self.start, self.end = rows.start[self.place], rows.end[self.place]
        self.issued = np.argsort(rows.called[self.place], kind="stable")
        self.signature, self.step = signature[self.place], rows.step[self.place]
        self.awaited, self.awaits = rows.awaited[self.place], rows.awaits[self.place]
        self.meets = self.awaited & self.awaits


class Sequence:
    """The operations so far, on the clock of the first part; ``number`` is theirs.

    ``arrived`` is when the last rank came, ``time`` when the first was done. ``needed`` and
    ``held`` are these of whom others wait for, and of who waits for others: the one is never
    after the other. ``issued`` are the numbers in the order of calls, if all parts have them all.
    """

    _COLUMNS = ("number", "signature", "step", "meets", "time", "arrived", "needed", "held")

    def __init__(self) -> None:
        empty = np.empty(0, dtype=np.int64)
        self.issued: Int64 | None = None
        self.number = self.signature = self.step = empty
        self.time = self.arrived = self.needed = self.held = empty
        self.meets = empty.astype(np.bool_)

    def find(self, part: Part, number: Int64, known: Line | None) -> tuple[Int64, Line | None]:
        """The operation of each row of a part, of those so far, or -1.

        ``number`` is what an identifier says already, or -1. Also tells how far the part's
        clock is ahead, ``known`` if that is right; None if unknown.
        """
        if self.number.size == 0:
            return number, known or SAME
        theirs = self._by_number(number)
        if known is None and (theirs >= 0).any():
            numbered = theirs >= 0
            known = fit(part.end[numbered], part.end[numbered] - self.time[theirs[numbered]])
        in_order = None if known is None else self._in_order(part, number, known)
        if in_order is not None:
            return in_order, known
        found, line = self._best(part, theirs, known)
        in_order = None if line is None else self._in_order(part, number, line)
        if in_order is not None:
            return in_order, line
        return np.where(found >= 0, self.number[found], number), line

    def add(self, part: Part, number: Int64, line: Line) -> None:
        """Keep what a part tells of its operations, all of which have a number now."""
        offset = line(part.end)
        found = self._by_number(number) if self.number.size else np.full(number.size, -1)
        met, new = found >= 0, found < 0
        if self.number.size == 0:
            self.issued = number[part.issued]
        elif new.any():
            self.issued = None
        at = found[met]
        came, over = part.start - offset, part.end - offset
        needed, held = np.where(part.awaited, came, ALWAYS), np.where(part.awaits, over, NEVER)
        # Noise only delays an end: the first rank's is closest to when it was over.
        for mine, theirs, one in (
            (self.arrived, came, np.maximum),
            (self.needed, needed, np.maximum),
            (self.time, over, np.minimum),
            (self.held, held, np.minimum),
        ):
            mine[at] = one(mine[at], theirs[met])
        more = (number, part.signature, part.step, part.meets, over, came, needed, held)
        for name, values in zip(self._COLUMNS, more, strict=True):
            setattr(self, name, np.concatenate((getattr(self, name), values[new])))
        order = np.argsort(self.time, kind="stable")
        for name in self._COLUMNS:
            setattr(self, name, getattr(self, name)[order])

    def renumber(self, became: Int64) -> None:
        """Take over new numbers."""
        self.number = became[self.number]
        if self.issued is not None:
            self.issued = became[self.issued]

    def _by_number(self, number: Int64) -> Int64:
        order = np.argsort(self.number, kind="stable")
        at = np.searchsorted(self.number[order], number).clip(max=order.size - 1)
        at = order[at]
        return np.where((self.number[at] == number) & (number >= 0), at, -1)

    def _in_order(self, part: Part, number: Int64, known: Line) -> Int64 | None:
        """The operations in the order of calls, if both have as many, alike, and possible.

        Calls come in one order on all ranks; on a CPU they may end in another. Where none of
        them is of all for all, they have to be of the same steps, or most to have met nevertheless.
        """
        if self.issued is None or self.issued.size != number.size or (number >= 0).any():
            return None
        number = number.copy()
        number[part.issued] = self.issued
        found = self._by_number(number)
        alike = self.signature[found] == part.signature
        if not alike.all() or not self._possible(part, found, known, CLOSE_NS).all():
            return None
        sure = part.meets.any() or self._same_steps(part, found)
        sure = sure or self._met(part, found, known).mean() >= ENOUGH
        return number if sure else None

    def _same_steps(self, part: Part, found: Int64) -> bool:
        """Whether each is of the step of its number, of several: one window may open later."""
        several = int(np.ptp(part.step)) > 0 and not (part.step == NULL).any()
        return several and bool((self.step[found] == part.step).all())

    def _best(self, part: Part, theirs: Int64, known: Line | None) -> tuple[Int64, Line | None]:
        """The partners that the known line finds, or a better one's."""
        found, share = np.full(part.place.size, -1, dtype=np.int64), 0.0
        if known is not None:
            found, share = self._partners(part, theirs, known)
        if share >= ENOUGH:
            return found, known
        a, b, _, _ = self._open(part, theirs)
        line = clock_line(a.some(a.meets), b.some(b.meets))
        if line is None:
            return found, known
        other, better = self._partners(part, theirs, line)
        return (other, line) if better > share else (found, known)

    def _open(self, part: Part, theirs: Int64) -> tuple[Marks, Marks, Int64, Int64]:
        """What is still to be matched, on both sides, and where it stands.

        Where nothing is of all for all, everything is taken to meet.
        """
        ours = np.flatnonzero(theirs < 0)
        free = np.flatnonzero(~np.isin(np.arange(self.number.size), theirs))
        in_a, in_b = self.meets[free], part.meets[ours]
        none = not (in_a.any() and in_b.any())
        return (
            Marks(self.signature[free], self.time[free], in_a | none),
            Marks(part.signature[ours], part.end[ours], in_b | none),
            free,
            ours,
        )

    def _partners(self, part: Part, theirs: Int64, line: Line) -> tuple[Int64, float]:
        """Each row's operation so far or -1, and how many found one where there are any."""
        a, b, free, ours = self._open(part, theirs)
        found = theirs.copy()
        if ours.size == 0 or free.size == 0:
            return found, 1.0
        partner = partners(a, b, line)
        left = nearest_left(a, b, line, partner)
        found[ours] = np.where(partner >= 0, free[partner], np.where(left >= 0, free[left], -1))
        # What only time tells has to have met.
        met = (left >= 0) | (b.meets & ~part.meets[ours])
        fits = np.where(
            met, self._met(part, found, line)[ours], self._possible(part, found, line)[ours]
        )
        found[ours[~fits]] = -1
        moved = b.time - line(b.time)
        inside = (moved >= a.time[0]) & (moved <= a.time[-1])
        share = (found[ours] >= 0).sum() / inside.sum() if inside.any() else 0.0
        return found, float(share)

    def _possible(self, part: Part, found: Int64, line: Line, margin: int = MARGIN_NS) -> Bool:
        """Whether all that anyone waits for had arrived before it was done."""
        offset = line(part.end)
        needed = np.where(part.awaited, part.start - offset, ALWAYS)
        held = np.where(part.awaits, part.end - offset, NEVER)
        before: Bool = (needed <= self.held[found] + margin) & (self.needed[found] <= held + margin)
        return before & (found >= 0)

    def _met(self, part: Part, found: Int64, line: Line) -> Bool:
        """Whether all had arrived before anyone was done, though some may not have to wait."""
        offset = line(part.end)
        came, over = part.start - offset, part.end - offset
        met: Bool = (came <= self.time[found] + MARGIN_NS) & (
            self.arrived[found] <= over + MARGIN_NS
        )
        return met & (found >= 0)
