"""The form of a rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pandas as pd
from msgspec import Struct
from numpy.typing import ArrayLike

from commtrace.arrays import NULL, integers
from commtrace.diagnosis import Cause, Evidence, Finding
from commtrace.intervals import Intervals, union

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Rule"]


_FEW = 2  # operations that name a place


class Rule(Struct, frozen=True):
    """One diagnosis. Fields are thresholds, each with a default and its unit in its name.

    ``explains`` names the rules whose findings are, at the same time and place, symptoms
    of this one, and ``same`` those that are only where they report the very same events;
    ``good_news`` marks a rule that reports no fault.
    """

    explains: ClassVar[tuple[str, ...]] = ()
    same: ClassVar[tuple[str, ...]] = ()
    good_news: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """The rule's name: its file's, in kebab-case."""
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    def finding(
        self,
        events: pd.DataFrame | tuple[ArrayLike, ArrayLike],
        *,
        summary: str,
        cost_ns: int,
        evidence: tuple[Evidence, ...],
        advice: str,
        ranks: tuple[int, ...] = (),
        streams: tuple[int, ...] | None = None,
        ruled_out: tuple[str, ...] = (),
        confidence: Literal["high", "medium", "low"] = "medium",
        explained_by: str | None = None,
        cost_on_top_ns: int | None = None,
        replayed_step_ns: int | None = None,
        place: str | None = None,
        cause: Cause | None = None,
    ) -> Finding:
        """A finding of this rule, from the first start to the last end of these events.

        They are rows of operations, of arrivals or of events, or their starts and ends;
        ``streams`` are theirs unless given, and so is the ``place`` where they are of one or two
        operations.
        """
        starts, ends = events if isinstance(events, tuple) else _starts_and_ends(events)
        if streams is None:
            known = (
                events["stream"] if isinstance(events, pd.DataFrame) and "stream" in events else ()
            )
            streams = tuple(sorted({int(stream) for stream in known}))
        return Finding(
            rule=self.name(),
            summary=summary,
            ranks=ranks,
            streams=streams,
            start_ns=int(np.min(starts)),
            end_ns=int(np.max(ends)),
            cost_ns=cost_ns,
            evidence=evidence,
            ruled_out=ruled_out,
            advice=advice,
            confidence=confidence,
            explained_by=explained_by,
            place=place or _operations(events),
            cause=cause,
            cost_on_top_ns=cost_on_top_ns,
            replayed_step_ns=replayed_step_ns,
            when=_merged(starts, ends),
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


def _operations(events: pd.DataFrame | tuple[ArrayLike, ArrayLike]) -> str | None:
    """The operations that rows are of, if these are no more than two, the most first."""
    if isinstance(events, tuple) or "op" not in events:
        return None
    ops = events["op"].astype(object).value_counts().index.tolist()
    return " and ".join(f"{op}s" for op in ops) if 0 < len(ops) <= _FEW else None


def _merged(starts: ArrayLike, ends: ArrayLike) -> Intervals:
    """The known times of events, as a merged set; a moment is a nanosecond long."""
    first, last = np.broadcast_arrays(
        *(integers(pd.Series(np.ravel(times)).round().astype("Int64")) for times in (starts, ends))
    )
    known = (first != NULL) & (last != NULL)
    return union(first[known], np.maximum(last, first + 1)[known])


def _starts_and_ends(events: pd.DataFrame) -> tuple[ArrayLike, ArrayLike]:
    """On the run's clock where the rows have times on it."""
    start = next(c for c in ("first_arrival_ns", "arrival_ns", "start_ns") if c in events)
    end = next((c for c in ("last_end_ns", "end_ns") if c in events), None)
    return events[start], events["start_ns"] + events["duration_ns"] if end is None else events[end]
