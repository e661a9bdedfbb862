"""Small operations of one kind that follow one another, and the run with one in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, codes, least, most, sums
from commtrace.causal.edits.run_edits import joined
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit
from commtrace.comms import members
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_activity
from commtrace.metrics.run.bandwidth import on_gpus
from commtrace.metrics.run.joined_rows import steps_of_operations
from commtrace.metrics.run.multiplied import multiplied
from commtrace.metrics.run.run_clock import intervals_on_run
from commtrace.quantiles import median
from commtrace.rules._latency import TINY_BYTES, Latency, Served
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SmallRows", "small_rows"]

_PAUSE_NS = 1_000_000  # in which much else may run, however long a latency is
_CALL_NS = 100_000  # in which a host calls the next, or a latency: beyond that it does other things
_HARDLY = 1 / 3  # of the latency: kernels that need the result of the one before take longer
_SCALAR_BYTES, _SCALAR_NS = 64, 500_000  # of a norm, a loss or a flag, and to read and make one
_OF_TINY = 0.5  # of the share of latency
_OF_SCALARS = 0.1  # of the pause before the next: what makes it computes no longer
_READING = 3  # latencies, in which a host reads a result and calls the next, computing hardly


class SmallRows(Struct, frozen=True, eq=False):
    """Operations of one kind that could be ``fewer``: those in rows that could join another.

    ``share`` is that of latency in their time, ``mean_ns`` what each has of a row's time. What one
    in place of each row saves is the edit ``in_one``, and about ``estimate_ns``. Where rows are
    ``paused``, though one step has them, fewer yet may do.
    """

    joining: Rows
    fewer: int
    latency: Latency
    share: float
    mean_ns: float
    estimate_ns: float
    in_one: Edit
    paused: bool = False


def small_rows(
    run: Measures, some: Served, known: Latency, min_share: float, bucket_bytes: int
) -> SmallRows | None:
    """Of operations of one kind those whose time is that share latency; None if none could join."""
    size = some.operations.ints("size_bytes")
    wanted = np.where(size <= TINY_BYTES, _OF_TINY * min_share, min_share)
    small = some.take((known.ns > wanted * some.typical_ns) & (size <= known.most_bytes))
    rows = _rows(run, small, known)
    row = _buckets(small, rows, bucket_bytes)
    of_row = _measured(small, row, known)
    several = of_row.count > 1
    if not several.any():
        return None
    fewer = int((of_row.count - 1).sum())
    saved = of_row.took_ns - known.ns - of_row.moving_ns
    in_rows = small.take(several[row])
    joining = in_rows.operations
    share = min(known.ns / median(in_rows.typical_ns), 1.0)
    mean_ns = float(of_row.took_ns[several].sum()) / len(joining)
    return SmallRows(
        joining,
        fewer,
        known,
        share,
        mean_ns,
        float(saved[several].clip(min=0).sum()),
        _joined(run, small, row, known.ns + of_row.moving_ns),
        _are_paused(run, small, rows),
    )


def _rows(run: Measures, small: Served, known: Latency) -> Int64:
    """Numbers the rows of operations without a pause or another one in between.

    On CPUs a row ends where the program multiplies matrices, but for backward: as of tensor
    parallelism, whose next layer needs the sum. None is a pause in which GPUs have next to nothing
    to run until their host calls the next, for longer between scalars, each of which it reads and
    makes, nor on CPUs a few latencies in which it hardly computes, as where it reads each result.
    """
    its, next_ns = small.operations, known.next_ns
    begin_ns, end_ns = its.ints("last_arrival_ns")[1:], its.ints("last_end_ns")[:-1]
    apart, pause_ns = np.diff(small.place) > 1, begin_ns - end_ns
    begins = apart | (pause_ns > min(next_ns, _PAUSE_NS))
    gpus = bool(on_gpus(its, run).all())
    most_ns = min(max(known.ns, _CALL_NS) if gpus else _READING * next_ns, _PAUSE_NS)
    most_computed_ns = _HARDLY * (np.full(pause_ns.size, next_ns) if gpus else pause_ns)
    if gpus and (its.ints("size_bytes") <= _SCALAR_BYTES).all():
        most_ns = max(most_ns, _SCALAR_NS)
        most_computed_ns = np.maximum(most_computed_ns, _OF_SCALARS * pause_ns)
    maybe = np.flatnonzero(begins & ~apart & (pause_ns <= most_ns))
    if maybe.size and (gpus or not len(run.rows("kernels"))):
        computed_ns = _computed_ns(run, its, end_ns[maybe], begin_ns[maybe])
        begins[maybe] = computed_ns > most_computed_ns[maybe]
    if not gpus:
        joined = np.flatnonzero(~begins)
        begins[joined] = multiplied(run, its, joined)
    return np.concatenate(([0], np.cumsum(begins)))[: len(its)]


def _computed_ns(run: Measures, its: Rows, begin_ns: Int64, end_ns: Int64) -> Int64:
    """In each of some times how long that of their group's GPUs computes that does so longest.

    All of it where a rank's trace tells of no computing at all.
    """
    most_ns = np.zeros_like(begin_ns)
    for rank in members(its.coded("communicator").at(0)):
        on_its = (work.compute for (of, _), work in device_activity(run).items() if of == rank)
        known = [when for when in on_its if when is not None and when[0].size]
        for when in known:
            on_run = intervals_on_run(run, rank, when)
            most_ns = np.maximum(most_ns, covered(begin_ns, end_ns, on_run))
        if not known:
            return end_ns - begin_ns
    return most_ns


def _buckets(small: Served, row: Int64, bucket_bytes: int) -> Int64:
    """The rows, each cut where another bucket is full: that can go while the next is filled."""
    size = small.operations.ints("size_bytes").clip(min=0)
    before = np.cumsum(size) - size
    full = (before - before[np.searchsorted(row, row)]) // bucket_bytes
    return codes(row, full)


def _are_paused(run: Measures, small: Served, row: Int64) -> bool:
    """Whether pauses alone part rows of one step."""
    own = steps_of_operations(run)[small.operations.ints("operation")]
    paused = (np.diff(row) > 0) & (np.diff(small.place) == 1) & (np.diff(own) == 0)
    return bool(paused.any())


def _joined(run: Measures, small: Served, row: Int64, time_ns: Float64) -> Edit:
    """Each row as its last operation, which takes the time that all need together."""
    first = np.concatenate(([True], row[1:] != row[:-1]))
    last = np.append(first[1:], True)
    of = small.operations.ints("operation")

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        times = np.zeros(1 + max(int(operation.max()), int(of.max())))
        times[of] = np.where(first & last, 0.0, time_ns[row])
        later, gone = (np.isin(operation, of[~flags]) for flags in (first, last))
        return joined(run, later, gone, times[operation], lag_ns)

    return edit


class _OfRow(Struct, frozen=True, eq=False):
    """Of each row: its operations, bytes, time once all were there, and that beyond latency."""

    count: Int64
    size_bytes: Int64
    took_ns: Int64
    moving_ns: Float64


def _measured(small: Served, row: Int64, known: Latency) -> _OfRow:
    its, count = small.operations, np.bincount(row)
    moving = (small.typical_ns - known.ns).clip(min=0)
    if known.link is not None:
        size = its.ints("size_bytes") * its.floats("factor")
        moving = np.fmin(moving, size / known.link.usual_gb_s)
    start = least(row, its.ints("last_arrival_ns"), count.size)
    end = most(row, its.ints("last_end_ns"), count.size)
    return _OfRow(
        count,
        sums(row, its.ints("size_bytes"), count.size),
        end - start,  # pauses in a row are what the host takes to call the next: one call has none
        np.bincount(row, moving).astype(np.float64),
    )
