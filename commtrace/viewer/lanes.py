"""The lanes of one thread: slices that overlap without nesting are drawn side by side."""

from __future__ import annotations

import heapq
import math

__all__ = ["Lanes"]


class Lanes:
    """Gives each slice the first lane where it nests, in logarithmic time.

    ``_room`` is a tree of maxima over the lanes: its leaves are the end of each lane's
    innermost open slice, infinite where none is open.
    """

    def __init__(self) -> None:
        self._open: list[list[int]] = [[]]
        self._room: list[float] = [math.inf, math.inf]
        self._closing: list[tuple[int, int]] = []

    def place(self, start: int, end: int) -> int:
        """The lane of a slice; they come by start, and of one start the longest first."""
        while self._closing and self._closing[0][0] <= start:
            _, lane = heapq.heappop(self._closing)
            self._open[lane].pop()
            self._update(lane)
        if self._room[1] < end:
            self._double()
        lane = self._first(end)
        self._open[lane].append(end)
        heapq.heappush(self._closing, (end, lane))
        self._update(lane)
        return lane

    def _first(self, end: int) -> int:
        node = 1
        while node < len(self._open):
            node *= 2
            if self._room[node] < end:
                node += 1
        return node - len(self._open)

    def _update(self, lane: int) -> None:
        room, node = self._room, len(self._open) + lane
        room[node] = self._open[lane][-1] if self._open[lane] else math.inf
        while node > 1:
            one, other = room[node], room[node ^ 1]
            node //= 2
            most = one if one > other else other
            if room[node] == most:
                return
            room[node] = most

    def _double(self) -> None:
        count = len(self._open)
        leaves = self._room[count:] + [math.inf] * count
        self._open += [[] for _ in range(count)]
        self._room = [math.inf] * len(leaves) + leaves
        for node in range(len(leaves) - 1, 0, -1):
            self._room[node] = max(self._room[2 * node], self._room[2 * node + 1])
