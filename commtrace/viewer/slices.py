"""What a timeline is made of, whatever the file's format: tracks, slices, counters, arrows."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.viewer.lanes import Lanes

__all__ = ["ROOT", "Slice", "Timeline", "Value", "apart", "draw", "nested"]

Value = int | float | str | bool | list[Any] | dict[str, Any] | None
"""What an argument can be, as JSON has it."""

ROOT = 0
_NOTHING: Mapping[str, Value] = MappingProxyType({})


class Slice(NamedTuple):
    """A stretch of time, on the run's clock; of no length it is a moment.

    ``operation`` numbers what is the same on all ranks, 0 if nothing. An arrow is a number:
    it leads from the slice that it ``leaves`` to the one that it ``reaches``.
    """

    start_ns: int
    end_ns: int
    name: str
    args: Mapping[str, Value] = _NOTHING
    operation: int = 0
    leaves: Sequence[int] = ()
    reaches: Sequence[int] = ()


class Timeline(Protocol):
    """A file in the making. Tracks are numbers; those below ROOT are whole ranks, or the run's."""

    def section(self) -> None:
        """What follows is of another rank: forget the names that were used."""

    def track(self, name: str, parent: int = ROOT, *, unit: str | None = None) -> int:
        """A new track, the last below its parent; a counter's has a unit."""

    def slices(self, track: int, slices: Sequence[Slice]) -> None:
        """Slices of one track, which nest or are apart: by start, the outer before the inner."""

    def counter(self, track: int, times_ns: Int64, values: Float64) -> None:
        """A counter's values, each from its time on."""


def draw(
    timeline: Timeline, name: str, parent: int, families: Sequence[Sequence[Slice]], lane: Int64
) -> None:
    """Families of slices, each of which nests in its first, in lanes: tracks of one name."""
    tracks = {
        number: timeline.track(name, parent) for number in range(int(lane.max(initial=-1)) + 1)
    }
    for number, track in tracks.items():
        mine = np.flatnonzero(lane == number).tolist()
        timeline.slices(track, [slice_ for at in mine for slice_ in families[at]])


def apart(start: Int64, end: Int64) -> Int64:
    """The lane of each interval, by start, so that none overlap in a lane."""
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return np.zeros(start.size, dtype=np.int64)
    lanes = np.empty(start.size, dtype=np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for at, (since, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= since:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (until, lane))
        lanes[at] = lane
    return lanes


def nested(start: Int64, end: Int64) -> Int64:
    """The lane of each interval, by start and the longest first, so that all nest in a lane."""
    if _nest(start, end):
        return np.zeros(start.size, dtype=np.int64)
    lanes = Lanes()
    placed: Iterable[int] = map(lanes.place, start.tolist(), end.tolist())
    return np.fromiter(placed, np.int64, start.size)


def _nest(start: Int64, end: Int64) -> bool:
    """Whether one lane will do."""
    open_: list[int] = []
    for since, until in zip(start.tolist(), end.tolist(), strict=True):
        while open_ and open_[-1] <= since:
            open_.pop()
        if open_ and open_[-1] < until:
            return False
        open_.append(until)
    return True
