"""Which rank of each all_to_all has the most bytes, and how many times the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, first_rows, least, numbered, sums
from commtrace.measures import measure
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["IMBALANCE", "Loads", "in_one_memory", "loads"]

IMBALANCE = 1.2  # times the mean: less is even


def in_one_memory(run: Measures) -> bool:
    """Whether all bytes of the run cross one memory, as those of gloo within a host do."""
    host = run.rows("ranks").coded("host")
    one_host = host.known.all() and len(host.occurring()) == 1
    backend = run.rows("groups").coded("backend")
    return bool(one_host and backend.known.all() and backend.occurring() == ["gloo"])


class Loads(Struct, frozen=True, eq=False):
    """Operations, with what the busiest rank of each has, and that against the mean."""

    operations: Rows
    most_bytes: Int64
    imbalance: Float64
    busiest: Int64
    stream: Int64
    start_ns: Int64

    @property
    def less_ns(self) -> Float64:
        """What each transfer would take less if its busiest rank had the mean."""
        return np.asarray(self.operations.ints("transfer_ns") * (1 - 1 / self.imbalance))

    def take(self, which: Bool) -> Loads:
        """Some of them."""
        return Loads(
            self.operations.take(which),
            self.most_bytes[which],
            self.imbalance[which],
            self.busiest[which],
            self.stream[which],
            self.start_ns[which],
        )


@measure
def loads(run: Measures) -> Loads:
    """The operations recorded on every rank, whose ranks are on one clock."""
    found = matched(run)
    row = np.flatnonzero(run.rows("collectives").coded("op").being("all_to_all"))
    calls, operation = run.rows("collectives", row), found.matches.ints("operation")[row]
    sent, received = calls.ints("in_bytes"), calls.ints("out_bytes")
    load = np.maximum(sent, received)
    order = np.lexsort((-load.clip(min=-1), operation))
    number = numbered(operation)
    busiest = order[first_rows(number[order])]
    count, sized = busiest.size, sent != NULL
    sizes = np.bincount(number[sized], minlength=count)
    mean = sums(number[sized], sent[sized], count) / sizes.clip(min=1)
    its = found.operations
    its = its.take(np.searchsorted(its.ints("operation"), operation[busiest]))
    whole = its.flags("exact") & (sizes == its.ints("present")) & (mean > 0)
    whole &= (its.ints("transfer_ns") != NULL) & (its.ints("last_end_ns") != NULL)
    return Loads(
        its,
        load[busiest],
        load[busiest] / np.where(whole, mean, 1.0),
        calls.ints("rank")[busiest],
        calls.ints("stream")[busiest],
        least(number, calls.ints("start_ns"), count),
    ).take(whole)
