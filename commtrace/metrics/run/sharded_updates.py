"""Gradients that GPUs all_reduce whole, though each rank updates a part of the parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, codes, first_rows, least, most, sums
from commtrace.measures import measure
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.elements import elements
from commtrace.metrics.run.sequences import sequences

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["reduced_whole"]

_LARGE_BYTES = 1_000_000
_PADDED = 0.05  # of the elements
_ALWAYS = 0.9  # of the steps: the window may cut one


@measure
def reduced_whole(run: Measures) -> Rows:
    """The large all_reduces, rows of ``called``, behind which as many elements are all_gathered.

    In one group, in each step that has such: every rank updates a part of what it gathers then.
    What reduce_scatters left in parts is gathered for them. Of GPUs alone: gloo's reduce_scatter
    is no faster.
    """
    rows, every = sequences(run), called(run)
    size, step, order = (rows.ints(name) for name in ("size_bytes", "step", "order"))
    known = (step != NULL) & (size >= _LARGE_BYTES) & ~rows.coded("device").being("cpu")
    summed, gathered, scattered = (
        np.flatnonzero(known & rows.coded("op").being(op))
        for op in ("all_reduce", "all_gather", "reduce_scatter")
    )
    if not summed.size or not gathered.size:
        return every.take(slice(0))
    place, many = codes(rows.ints("sequence"), step), elements(rows)
    count = int(place.max()) + 1
    whole, back, parts = (
        sums(place[its], many[its], count) for its in (summed, gathered, scattered)
    )
    behind = most(place[summed], order[summed], count) < least(
        place[gathered], order[gathered], count
    )
    alike = behind & (abs(back - parts - whole) <= _PADDED * whole) & (whole > 0)
    group = codes(rows.coded("communicator"))
    reducing = np.unique(place[summed])
    of = group[first_rows(place)][reducing]
    groups = int(group.max()) + 1
    reduces = np.bincount(of, minlength=groups)
    sure = np.bincount(of, alike[reducing], groups) >= _ALWAYS * np.maximum(reduces, 1)
    operation = rows.ints("operation")[summed[sure[group[summed]]]]
    return every.take(np.isin(every.ints("operation"), operation))
