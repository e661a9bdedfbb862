"""The form of a rule."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from commtrace.arrays import NULL, Int64, codes, distinct, first_rows
from commtrace.causal.savings import Saving
from commtrace.diagnosis import Cause, Evidence, Finding
from commtrace.intervals import Intervals, union
from commtrace.table import Rows
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Rule", "too"]


_FEW = 2  # operations that name a place
_STARTS = ("first_arrival_ns", "arrival_ns", "start_ns")
_ENDS = ("last_end_ns", "end_ns")


class Rule(Struct, frozen=True):
    """One diagnosis. Fields are thresholds, each with a default and its unit in its name.

    ``explains`` names the rules whose findings are, at the same time and place, symptoms
    of this one, and ``same`` those that are only where they report the very same events;
    ``moots`` those that are where most of their operations are this one's, which need not be called
    at all; ``good_news`` marks a rule that reports no fault; ``of_single_events`` one whose
    findings hold, too, where most events are missing; ``paid_once`` one whose faults do not come
    again, however long a program runs; ``may_be_needed`` one that saves what it says only if
    the program can do without what the trace cannot show that it needs: less of it counts in the
    order. Findings are symptoms of what costs
    ``explained_by_share`` of what they do: of larger ones the most would remain.
    """

    explains: ClassVar[tuple[str, ...]] = ()
    same: ClassVar[tuple[str, ...]] = ()
    moots: ClassVar[tuple[str, ...]] = ()
    good_news: ClassVar[bool] = False
    of_single_events: ClassVar[bool] = False
    paid_once: ClassVar[bool] = False
    may_be_needed: ClassVar[bool] = False
    explained_by_share: ClassVar[float] = 0.5

    @classmethod
    def name(cls) -> str:
        """The rule's name: its file's, in kebab-case."""
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    def finding(
        self,
        events: Rows | tuple[ArrayLike, ArrayLike],
        *,
        summary: str,
        evidence: tuple[Evidence, ...],
        advice: str,
        cost_ns: int = 0,
        saving: Saving | None = None,
        ranks: tuple[int, ...] = (),
        streams: tuple[int, ...] | None = None,
        ruled_out: tuple[str, ...] = (),
        confidence: Literal["high", "medium", "low"] = "medium",
        explained_by: str | None = None,
        place: str | None = None,
        cause: Cause | None = None,
        operations: ArrayLike | None = None,
        weighs_ns: int = 0,
        explains: tuple[str, ...] | None = None,
    ) -> Finding:
        """A finding of this rule, from the first start to the last end of these events.

        They are rows of operations, of arrivals or of events, or their starts and ends in ns;
        ``streams`` are theirs unless given, and so is the ``place`` where they are of one or two
        operations. ``operations`` are the numbers of those that the program should call
        otherwise, or is late to: theirs unless given. What it costs is the ``saving``, if one is
        given, which also says in the evidence where it is estimated. It explains what its rule
        does, unless ``explains`` is given.
        """
        rows = events if isinstance(events, Rows) else None
        times = _starts_and_ends(events) if isinstance(events, Rows) else events
        starts, ends = (np.asarray(its, np.int64) for its in times)
        gain = saving or Saving(cost_ns)
        if streams is None:
            streams = _streams(rows)
        return Finding(
            rule=self.name(),
            summary=summary,
            ranks=ranks,
            streams=streams,
            start_ns=int(starts[starts != NULL].min()),
            end_ns=int(ends.max()),
            cost_ns=gain.cost_ns,
            evidence=(*evidence, *gain.evidence),
            ruled_out=ruled_out,
            advice=advice,
            confidence=confidence,
            explained_by=explained_by,
            place=place or _operations(rows),
            cause=cause,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            when=_merged(starts, ends),
            operations=_numbers(rows) if operations is None else operations,
            weighs_ns=weighs_ns,
            explains=explains,
        )

    @classmethod
    def thresholds(cls) -> dict[str, int | float | str]:
        """The fields, with their defaults."""
        return dict(zip(cls.__struct_fields__, cls.__struct_defaults__, strict=True))

    def check(self, run: Measures) -> Iterator[Finding]:
        """Yield what is wrong. Raises CannotLook where the trace lacks what it needs."""
        raise NotImplementedError

    @staticmethod
    def bad() -> Measures:
        """A tiny trace that has the fault."""
        raise NotImplementedError

    @staticmethod
    def good() -> Measures:
        """Its nearest neighbour that does not."""
        raise NotImplementedError


def _streams(rows: Rows | None) -> tuple[int, ...]:
    """The streams of rows that have some."""
    if rows is None or "stream" not in _names(rows):
        return ()
    return tuple(distinct(rows.ints("stream")).tolist())


def _numbers(rows: Rows | None) -> Int64 | None:
    """The numbers of the operations that rows are of, if they are known."""
    return None if rows is None or "operation" not in _names(rows) else rows.ints("operation")


def too(ranks: Collection[int], but: int, of: Measures) -> str:
    """For a finding's summary that names the worst of several ranks of a run: who has it, too."""
    others = [rank for rank in ranks if rank != but]
    known, size = of.rows("ranks").ints("rank"), of.rows("ranks").ints("world_size")
    if len(others) > 1 and set(ranks) >= {*known.tolist(), *range(size.max(initial=0))}:
        return " (all other ranks, too)"
    return f" ({numbered('rank', others)}, too)" if others else ""


def _operations(rows: Rows | None) -> str | None:
    """The operations that rows are of, if these are no more than two, the most first."""
    if rows is None or "op" not in _names(rows):
        return None
    op = rows.coded("op").take(rows.coded("op").known)
    kind = codes(op)
    most = np.argsort(-np.bincount(kind), kind="stable")
    if not 0 < most.size <= _FEW:
        return None
    return " and ".join(f"{op.at(row)}s" for row in first_rows(kind)[most])


def _merged(starts: Int64, ends: Int64) -> Intervals:
    """The known times of events, as a merged set; a moment is a nanosecond long."""
    first, last = np.broadcast_arrays(starts, ends)
    known = (first != NULL) & (last != NULL)
    return union(first[known], np.maximum(last, first + 1)[known])


def _starts_and_ends(rows: Rows) -> tuple[Int64, Int64]:
    """On the run's clock where the rows have times on it."""
    names = _names(rows)
    start = rows.ints(next(name for name in _STARTS if name in names))
    end = next((name for name in _ENDS if name in names), None)
    return start, rows.ints(end) if end else rows.when()[1]


def _names(rows: Rows) -> set[str]:
    return {column.name for column in rows.table.columns}
