"""Events that have all that is needed of them, and how many lack what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64
from commtrace.reader.json import arguments
from commtrace.reader.json.columns import integers
from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.events import Arguments

__all__ = ["Batch", "Checked", "Faults", "Times"]

_YEAR_NS = 366 * 86_400 * 10**9
_WRONG_ARGUMENTS = "whose arguments have the wrong types"
_IMPOSSIBLE = "with a negative size or device, or a group of no ranks"

_T = TypeVar("_T")
Times = Callable[[list[Any]], Int64]
"""Microseconds, as an event has them, to nanoseconds."""


class Batch(Struct, frozen=True):
    """Events of one kind, with their times."""

    events: list[Event]
    names: list[str | None]
    start_ns: Int64
    duration_ns: Int64
    thread: Int64

    def only(self, rows: Bool) -> Batch:
        """Some of them."""
        if rows.all():
            return self
        events = [event for event, keep in zip(self.events, rows.tolist(), strict=True) if keep]
        names = [event.name for event in events]
        return Batch(events, names, self.start_ns[rows], self.duration_ns[rows], self.thread[rows])


class Faults(Struct):
    """How many events have something wrong with them, and what it is with the first."""

    count: int = 0
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, count: int, reason: str) -> None:
        """So many more."""
        if count:
            self.count += count
            self.reason = self.reason or reason

    def join(self, later: Faults) -> None:
        """Those of events behind these."""
        self.add(later.count, later.reason or "")


class Checked:
    """Checks events, and counts those with faults.

    ``left_out`` are the events that are not used, ``unbelieved`` those that are, but for arguments
    that cannot be.
    """

    def __init__(self, times: Times) -> None:
        self.left_out, self.unbelieved = Faults(), Faults()
        self._times = times

    def join(self, later: Checked) -> None:
        """Count those of events behind these, too."""
        self.left_out.join(later.left_out)
        self.unbelieved.join(later.unbelieved)

    def sound(self, events: list[Event], *, on_host: bool) -> Batch:
        """The events with their times, but for those that lack something."""
        names = [event.name for event in events]
        batch = Batch(
            events,
            names,
            self._times([event.ts for event in events]),
            self._times([event.dur for event in events]),
            integers([event.tid for event in events]),
        )
        fits = (batch.start_ns != NULL) & (batch.duration_ns >= 0)
        fits &= batch.duration_ns <= _YEAR_NS
        if on_host:
            fits &= batch.thread != NULL
        if not all(names) and None in names:
            fits &= np.array([name is not None for name in names], dtype=np.bool_)
        if fits.all():
            return batch
        self.left_out.add(int((~fits).sum()), _lack(batch, int(fits.argmin())))
        return batch.only(fits)

    def decoded(
        self, events: list[Event], decoder: arguments.Decoder[_T], *, on_host: bool
    ) -> tuple[Batch, list[_T]]:
        """The sound events whose arguments have the right types, and these."""
        batch = self.sound(events, on_host=on_host)
        decoded = decoder.of([event.args for event in batch.events])
        known = [args for args in decoded if args is not None]
        if len(known) == len(decoded):
            return batch, known
        self.left_out.add(len(decoded) - len(known), _WRONG_ARGUMENTS)
        return batch.only(np.array([args is not None for args in decoded], dtype=np.bool_)), known

    def believed(self, *columns: Int64) -> list[Int64]:
        """Columns of what is never negative."""
        negative = [(column < 0) & (column != NULL) for column in columns]
        self.unbelieved.add(int(np.any(negative, axis=0).sum()), _IMPOSSIBLE)
        return [np.where(odd, NULL, c) for odd, c in zip(negative, columns, strict=True)]

    def possible(self, known: Arguments | None) -> Arguments:
        """The arguments of communication, without what cannot be."""
        if known is None:
            self.unbelieved.add(1, _WRONG_ARGUMENTS)
            return Arguments()
        known = arguments.of_today(known)
        args = arguments.possible(known)
        if args is not known:
            self.unbelieved.add(1, _IMPOSSIBLE)
        return args


def _lack(batch: Batch, row: int) -> str:
    if batch.events[row].name is None:
        return "without a name"
    if batch.start_ns[row] == NULL:
        return "whose ts is not a number"
    if batch.duration_ns[row] == NULL:
        return "whose dur is not a number"
    if batch.duration_ns[row] < 0:
        return "of negative duration"
    if batch.duration_ns[row] > _YEAR_NS:
        return "that lasts over a year"
    return "whose tid is not an integer"
