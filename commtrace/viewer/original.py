"""The events of a rank's own file, on the run's clock, in place of what the tables keep of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from commtrace.arrays import Int64
from commtrace.metrics.run.run_clock import on_run
from commtrace.reader.json import BROKEN
from commtrace.viewer.original_events import Id, Rank, Shown, identifier, read_rank
from commtrace.viewer.slices import Slice, Timeline, Value, draw, nested

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["draw_original"]

_BEYOND_OPERATORS = {
    "cpu_instant_event",
    "forward_backward",
    "fwdbwd",
    "overhead",
    "python function",
    "python_function",
    "trace",
}
_MOMENTS = ("i", "I", "R")
_ARROWS = ("s", "t", "f")

_Place = tuple[Id, Id]


def draw_original(
    run: Measures,
    timeline: Timeline,
    name: str,
    rank: int,
    parent: int,
    arrows: Iterator[int],
    keep: str,
) -> int:
    """The slices, moments, arrows and counters of a rank's file; the number of other events.

    All of them if ``keep`` is ``everything``, else without Python's functions and the profiler's
    own. Raises TraceError where the file cannot be read.
    """
    ranks = run.rows("ranks")
    file = ranks.coded("file").at(int((ranks.ints("rank") == rank).argmax()))
    its = read_rank(rank, Path(str(file)))
    start = on_run(run, rank, its.start_ns)
    end = on_run(run, rank, its.start_ns + its.duration_ns.clip(min=0))
    kept = [
        at
        for at, event in enumerate(its.events)
        if keep == "everything" or str(event.cat).casefold() not in _BEYOND_OPERATORS
    ]
    made = _Made(its, start, end, arrows)
    lost = sum(not made.add(at) for at in kept)
    above: dict[Id, int] = {}
    for (process, thread), members in made.places.items():
        if process not in above:
            label = its.names.get(("process_labels", process, ""), "")
            above[process] = timeline.track(f"{name} {label or process}".strip(), parent)
        label = its.names.get(("thread_name", process, thread), "")
        where = np.asarray(members)
        families = [(made.slice(at),) for at in members]
        lanes = nested(start[where], np.where(made.is_slice[where], end[where], start[where]))
        draw(timeline, f"{name} {label or thread}".strip(), above[process], families, lanes)
    for what, values in made.counters.items():
        times = np.array([time for time, _ in values], dtype=np.int64)
        track = timeline.track(f"{name} {what}", parent, unit="")
        timeline.counter(track, times, np.array([value for _, value in values], dtype=np.float64))
    return lost + its.left_out


class _Made:
    """Events sorted out: which are in which place, with which arrows; what counters count."""

    def __init__(self, its: Rank, start: Int64, end: Int64, arrows: Iterator[int]) -> None:
        self._events, self._start, self._end = its.events, start.tolist(), end.tolist()
        self.is_slice = np.array([event.ph == "X" for event in its.events], dtype=np.bool_)
        self.places: dict[_Place, list[int]] = defaultdict(list)
        self.counters: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._open: dict[_Place, list[int]] = defaultdict(list)
        self._tied: dict[int, list[int]] = defaultdict(list)
        self._arrows: dict[tuple[str | None, Id], int] = defaultdict(lambda: next(arrows))

    def add(self, at: int) -> bool:
        """Take the next event in time; False if it is none that can be drawn."""
        event = self._events[at]
        place = identifier(event.pid), identifier(event.tid)
        if event.ph == "X":
            self.places[place].append(at)
            self._open[place].append(at)
        elif event.ph in _MOMENTS:
            self.places[place].append(at)
        elif event.ph in _ARROWS:
            arrow = self._arrows[event.cat, identifier(event.id)]
            self._tied[self._around(at, place)].append(arrow)
        elif event.ph == "C":
            for name, value in _arguments(event).items():
                if isinstance(value, int | float):
                    self.counters[f"{event.name} {name}"].append((self._start[at], value))
        else:
            return False
        return True

    def slice(self, at: int) -> Slice:
        """An event as it is drawn."""
        event = self._events[at]
        end = self._end[at] if event.ph == "X" else self._start[at]
        arguments = {"category": event.cat, **_arguments(event)}
        name = str(event.name or "")
        return Slice(self._start[at], end, name, arguments, leaves=self._tied.get(at, ()))

    def _around(self, at: int, place: _Place) -> int:
        """The innermost slice in which an arrow begins or ends; without one the moment itself."""
        open_ = self._open[place]
        while open_ and self._end[open_[-1]] < self._start[at]:
            open_.pop()
        if open_:
            return open_[-1]
        self.places[place].append(at)
        return at


def _arguments(event: Shown) -> dict[str, Value]:
    try:
        args: Any = msgspec.json.decode(event.args)
    except BROKEN:
        return {"args": bytes(event.args).decode("utf-8", "replace")}
    if not isinstance(args, dict):
        return {} if args is None else {"args": str(args)}
    return args
