"""What keeps exposed communication from hiding: how it was called, and what came behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, rows_by, sums
from commtrace.intervals import covered, subtract, union
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.exposure import exposure
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.quantiles import median
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Called",
    "asynchronous",
    "exposed_ns",
    "exposed_shares",
    "most_exposed",
    "rows_of_operation",
    "unlaunched_ns",
]

_BESIDE = 0.25  # of the calls of a kind: the last one of a backward pass has nothing beside it
_INEXACT_NS = 1_000  # by which what waits for each other can seem to run at once
_AT_WORK = 0.05  # of what the busiest stream computes: FSDP copies on streams of its own


def most_exposed(run: Measures) -> tuple[str | None, float]:
    """The operation that most of the exposed time belongs to, and its share of it in percent.

    None are those whose operation the trace does not show.
    """
    shares = exposed_shares(run)
    if not any(shares.values()):
        return None, 100.0
    most = max(shares, key=lambda name: shares[name])
    return most, shares[most]


def exposed_shares(run: Measures) -> dict[str | None, float]:
    """The share of each operation in the exposed time, in percent; None is no operation's name."""
    by_op = exposure(run, by="op")
    op, exposed_ns = by_op.coded("op"), by_op.ints("exposed_ns").clip(min=0)  # 0 where unknown
    each = sums(op.codes.astype(np.int64), exposed_ns, len(op.names) + 1)  # the last has no name
    shares = (100 * each / max(int(each.sum()), 1)).tolist()
    total = dict(zip((*op.names, None), shares, strict=True))
    return {name: total[name] for name in (*sorted(op.names), None)}


def rows_of_operation(run: Measures, op: str) -> Int64:
    """The rows of ``collectives`` that are of an operation."""
    return np.flatnonzero(run.rows("collectives").coded("op").being(op))


class Called(NamedTuple):
    """Rows of ``collectives``, and of each whether it holds up no device, and its phase."""

    rows: Int64
    asynchronous: Bool
    phase: Coded


def asynchronous(run: Measures, op: str | None) -> Called:
    """Which calls of an operation are asynchronous, so hold up no device, and in which phase.

    A trace with shapes, or of a newer PyTorch, has it. On a GPU it also shows: while calls of one
    group and phase run that a stream waits for at once, and that wait for it, none computes. FSDP's
    on a stream of their own are called as if they held it up, and do not. Calls whose launch is not
    in the trace are left out, unless all are so.
    """
    every = run.rows("collectives")
    of_op = every.coded("op").where(lambda name: name == op)
    launched = of_op & (every.ints("launch_ns") != NULL)
    mine = np.flatnonzero(launched if launched.any() else of_op)
    calls, phase = run.rows("collectives", mine), phases(run).take(mine)
    kind = codes(calls.ints("rank"), phase, calls.coded("group"))
    share = np.bincount(kind, _beside(calls, run)) / np.bincount(kind)
    recorded, runs_beside = calls.ints("asynchronous"), share[kind] >= _BESIDE
    shows = (recorded == NULL) | ~calls.coded("device").being("cpu")
    return Called(mine, (recorded == 1) | (shows & runs_beside), phase)


def _beside(calls: Rows, run: Measures) -> Bool:
    """Whether compute runs beside a call, of streams that compute much.

    FSDP copies what it gathers and scatters on others, which wait for no compute.
    """
    start_ns, end_ns = calls.when()
    found = np.zeros(len(calls), np.bool_)
    for (rank, device), at in rows_by(calls.ints("rank"), calls.coded("device")).items():
        kernels = _compute_kernels(run, rank, device)
        if len(kernels):
            stream, duration_ns = codes(kernels.ints("stream")), kernels.ints("duration_ns")
            computed = sums(stream, duration_ns, int(stream.max()) + 1)
            its = kernels.take(computed[stream] >= _AT_WORK * computed.max())
            busy = union(*its.when())
            found[at] = covered(start_ns[at], end_ns[at], busy) > _INEXACT_NS
    return found


def exposed_ns(run: Measures, rows: Int64) -> Int64:
    """How long each of these rows of ``collectives`` ran with no compute beside it, as is known."""
    calls = run.rows("collectives", rows)
    start_ns, end_ns = calls.when()
    found = np.zeros(rows.size, np.int64)
    for (rank, device), at in rows_by(calls.ints("rank"), calls.coded("device")).items():
        done = device_activity(run).get(Device(rank, device))
        if done is not None and done.compute is not None:
            exposed = subtract(done.communication, done.compute)
            found[at] = covered(start_ns[at], end_ns[at], exposed)
    return found


def unlaunched_ns(run: Measures) -> int:
    """Exposed time before the host had launched the compute behind it: the median device's."""
    times = []
    for place, done in device_activity(run).items():
        if done.compute is None or not done.communication[0].size:
            continue
        kernels = _compute_kernels(run, *place)
        if not len(kernels):
            continue
        begun, launched = kernels.ints("start_ns"), kernels.ints("launch_ns")
        launched = np.where(launched == NULL, 0, launched)  # long ago where it is unknown
        exposed = subtract(done.communication, done.compute)
        opens, closes = done.compute
        launch = np.minimum(launched[np.searchsorted(begun, opens)], opens)
        before = np.append(np.int64(0), closes[:-1])
        times.append(int(covered(before, np.maximum(before, launch), exposed).sum()))
    return int(median(times)) if times else 0


def _compute_kernels(run: Measures, rank: int, device: str) -> Rows:
    """The rows of ``kernels`` that compute on a device, by their start."""
    its = rows_of_rank(run, "kernels", rank)
    rows = np.flatnonzero(its.coded("kind").being("compute") & its.coded("device").being(device))
    return its.take(rows[np.argsort(its.ints("start_ns")[rows], kind="stable")])
