"""A typical step of both sides of a comparison, below each other on one scale."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from commtrace.arrays import distinct
from commtrace.metrics.run.timeline_events import timeline_events
from commtrace.reports.web.bars import legend
from commtrace.reports.web.markup import Markup, tag
from commtrace.reports.web.shown_ranks import shown_ranks
from commtrace.reports.web.thinned import Events, events_of
from commtrace.reports.web.timeline_picture import kinds_of, ranks_picture
from commtrace.units import counted, duration

if TYPE_CHECKING:
    from commtrace.comparing.typical import TypicalStep

__all__ = ["typical_steps"]

_MOST_RANKS = 24


def typical_steps(
    base: TypicalStep, candidate: TypicalStep, named: Collection[int]
) -> Iterator[Markup]:
    """Pictures of both, from the step's start; of many ranks those ``named``, and others."""
    sides = {"base": base, "candidate": candidate}
    events = {name: _events(its) for name, its in sides.items()}
    kinds = dict.fromkeys(kind for its in events.values() for kind in kinds_of(its))
    whole_ns = max(its.end_ns - its.start_ns for its in sides.values())
    yield legend([*kinds, "idle"])
    yield tag(
        "div",
        *(_picture(name, its, events[name], named, whole_ns) for name, its in sides.items()),
        class_="scroll",
    )
    yield tag(
        "p",
        "The step of each side that is nearest to its mean, from its start to the line at its end; "
        "both on one scale. Of a rank, compute and copies are above, communication is below.",
        class_="hint",
    )


def _picture(
    name: str, its: TypicalStep, events: Events, named: Collection[int], whole_ns: int
) -> Markup:
    every = distinct(its.measures.rows("ranks").ints("rank")).tolist()
    ranks = shown_ranks(every, named, _MOST_RANKS)
    title = f"{name}, step {its.step}{_recording(its)}: {duration(its.end_ns - its.start_ns)}"
    shown = f", {len(ranks)} of {counted(len(every), 'rank')}" if ranks != every else ""
    return tag(
        "figure",
        tag("figcaption", title + shown),
        ranks_picture(events, ranks, its.start_ns, its.end_ns, whole_ns, title),
    )


def _recording(its: TypicalStep) -> str:
    return f" of recording {its.recording}" if its.recording > 1 else ""


def _events(its: TypicalStep) -> Events:
    table = timeline_events(its.measures)
    start, duration = table.ints("start_ns"), table.ints("duration_ns")
    return events_of(table.take((start < its.end_ns) & (start + duration > its.start_ns)))
