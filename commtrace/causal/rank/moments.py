"""Moments in groups, such as those of a stream or a thread, to find neighbours in time."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int64

__all__ = ["Moments"]


class Moments:
    """Moments, and in which group each is.

    Groups are numbers from 0; those asked for may be -1, which has no moments.
    """

    def __init__(self, group: Int64, moment: Int64) -> None:
        self._first = int(moment.min()) if moment.size else 0
        self._span = int(moment.max()) - self._first + 2 if moment.size else 2
        keys = group * self._span + (moment - (self._first - 1))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    @property
    def order(self) -> Int64:
        """The rows by group and time, in their own order where these are equal."""
        return self._order

    @property
    def place(self) -> Int64:
        """How many moments of its group each row's is, counted in time."""
        rows = np.empty_like(self._order)
        rows[self._order] = np.arange(self._order.size)
        group = self._sorted // self._span
        first = np.searchsorted(group, group)
        return (np.arange(group.size) - first + 1)[rows]

    def count(self, group: Int64, until: Int64) -> Int64:
        """How many moments a group has up to a time."""
        found = np.searchsorted(self._sorted, self._keys(group, until), "right")
        return found - np.searchsorted(self._sorted, group * self._span)

    def last(self, group: Int64, until: Int64) -> Int64:
        """The row of a group's last moment up to a time; -1 where there is none."""
        return self._row(
            group, np.searchsorted(self._sorted, self._keys(group, until), "right") - 1
        )

    def next(self, group: Int64, after: Int64) -> Int64:
        """The row of a group's first moment behind a time; -1 where there is none."""
        return self._row(group, np.searchsorted(self._sorted, self._keys(group, after), "right"))

    def _keys(self, group: Int64, moment: Int64) -> Int64:
        return group * self._span + np.clip(moment - self._first + 1, 0, self._span - 1)

    def _row(self, group: Int64, at: Int64) -> Int64:
        keys, order = np.append(self._sorted, -1), np.append(self._order, -1)  # also for row -1
        begins, key = group * self._span, keys[at]
        return np.where((begins <= key) & (key < begins + self._span), order[at], -1)
