"""The timeline's section: a picture of one step, which the script replaces by the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, distinct
from commtrace.causal.steps import step_times_by_rank
from commtrace.metrics.run.timeline_events import timeline_events
from commtrace.reports.content import alike
from commtrace.reports.content.open_command import open_command_shown
from commtrace.reports.web.bars import legend
from commtrace.reports.web.markup import Markup, tag
from commtrace.reports.web.shown_ranks import shown_ranks
from commtrace.reports.web.thinned import Events, events_of, thinned
from commtrace.reports.web.timeline_data import Step, timeline_data
from commtrace.reports.web.timeline_picture import kinds_of, timeline_picture
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.measures import Measures

__all__ = ["timeline"]

_MOST_RANKS = 128
_PICTURE_LANES = 24
_KEYS = (
    "drag or ← → to move, ctrl + wheel, pinch or + − to zoom, 0 for all, N and P for the next and "
    "previous event, Escape to let go"
)


def timeline(analysis: Analysis, most: int) -> Markup | None:
    """The timeline of at most so many events, and what had to be thinned for that."""
    run = analysis.measures
    table = timeline_events(run)
    if not len(table):
        return None
    ranks = _shown_ranks(analysis)
    events, gap = thinned(events_of(table.take(np.isin(table.ints("rank"), [*ranks]))), most)
    every = _steps(run)
    steps = [every[i] for i in shown_ranks(range(len(every)), (), most)]
    start_ns, end_ns = _window(events, steps)
    return tag(
        "div",
        tag("p", *_about(analysis, len(table), events, gap, len(ranks)), class_="hint"),
        tag("p", f"Marked are {len(steps):,} of {len(every):,} steps.", class_="hint")
        if len(steps) < len(every)
        else None,
        legend(kinds_of(events)),
        tag(
            "div",
            tag("p", f"One step, {ms(end_ns - start_ns)}; the page's script shows all.")
            if steps
            else None,
            tag(
                "div",
                timeline_picture(events, start_ns, end_ns, _PICTURE_LANES),
                class_="scroll",
            ),
            class_="static-timeline",
        ),
        tag("div", id="timeline", data_keys=_KEYS),
        tag(
            "script", timeline_data(run, events, steps), type="application/json", id="timeline-data"
        ),
    )


def _shown_ranks(analysis: Analysis) -> Sequence[int]:
    """All ranks; of very many those that findings name, one of each group, others between them."""
    named = {rank for finding in analysis.verdict.faults for rank in finding.ranks}
    named |= {int(row["ranks"].partition(",")[0]) for row in alike.groups(analysis.measures)}
    return shown_ranks(analysis.run.ranks, named, _MOST_RANKS)


def _about(
    analysis: Analysis, found: int, events: Events, gap: int, ranks: int
) -> list[Markup | str]:
    said: list[Markup | str] = [
        f"{counted(found, 'event')} of {counted(len(analysis.run.ranks), 'rank')}. "
    ]
    if ranks < len(analysis.run.ranks):
        said.append(
            f"Shown are {ranks} ranks: those that findings name, one of each group that behaves "
            "alike, others between them. "
        )
    if gap:
        merged = int((events.count > 1).sum())
        said.append(
            f"Thinned to {events.start.size:,}: what follows within {ms(gap)} on a lane is one "
            f"block, of which there are {merged:,}. "
        )
    return [*said, "Everything, in Perfetto: ", tag("code", open_command_shown(analysis)), "."]


def _steps(run: Measures) -> list[Step]:
    """Each step, from the first rank's begin to the last one's end."""
    table = step_times_by_rank(run)
    table = table.take(table.ints("start_ns") != NULL)
    number, (start, end) = table.ints("step"), table.when()
    return [
        Step(step, int(start[number == step].min()), int(end[number == step].max()))
        for step in distinct(number).tolist()
    ]


def _window(events: Events, steps: list[Step]) -> tuple[int, int]:
    """The step of median length, of those with events in them; else all there is."""
    first, last = int(events.start.min()), int(events.end.max())
    inside = [step for step in steps if first <= step.end_ns and step.start_ns <= last]
    if not inside:
        return first, max(last, first + 1)
    by_length = sorted(inside, key=lambda step: step.end_ns - step.start_ns)
    step = by_length[len(by_length) // 2]
    return step.start_ns, step.end_ns
