"""How fast the operations of a run were served, once everybody was there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import NULL, Bool, Float64, Int32, codes, distinct, first_rows, nth
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook
from commtrace.expect import Model, fit
from commtrace.intervals import covered
from commtrace.measures import measure
from commtrace.metrics.rank.activity import calls_by_device, device_activity
from commtrace.metrics.run.group_sizes import group_sizes
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.moved_before import moved_before
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.quantiles import quantiles
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["KIND", "SERVED", "fitted", "hidden", "on_gpus", "served", "streams", "typical_ns"]

_MAX_RESIDUAL = 0.3
_FAR_LONGER = 1.5
_NEEDED = ("size_bytes", "transfer_ns", "first_arrival_ns", "last_end_ns")
KIND = ["communicator", "op", "dtype", "size_bytes"]

SERVED = Table(
    "served",
    "one operation of the run whose size and transfer are known, by its first arrival",
    (
        *(
            structs.replace(its, dtype="int64") if its.name in _NEEDED else its
            for its in OPERATIONS.columns
        ),
        Column("ranks", "Int64", "Ranks in the group, known or deduced; null if neither.", "ranks"),
        Column("factor", "float64", "What makes bus bandwidth of algorithm bandwidth."),
        Column(
            "busbw_gb_s",
            "float64",
            "size × factor / transfer; null without a factor, or where a part had moved before.",
            "GB/s",
        ),
    ),
)


@measure
def served(run: Measures, *, cold: bool = False, late: bool = False) -> Rows:
    """The operations whose size is known, in the order of their arrival: SERVED.

    Each communicator's first, if it may have set it up, only if ``cold``: one that takes far longer
    than others of its kind, or has none. Messages that gloo noted late, whose transfer is an upper
    bound, only if ``late``. CannotLook if there is none.
    """
    its, bounds = _sized(run), message_waits(run).late_operations
    rows = its.rows if cold else its.rows[~its.cold]
    if not late:
        if not bounds.size:
            return served(run, cold=cold, late=True)
        rows = rows[~np.isin(matched(run).operations.ints("operation")[rows], bounds)]
    if not rows.size:
        raise CannotLook("needs sizes: no operation has one")
    return _served(run, rows)


class _Sized(Struct, frozen=True, eq=False):
    """The ``rows`` of operations whose size is known, and which may have set up their group."""

    rows: Int32
    cold: Bool


@measure
def _sized(run: Measures) -> _Sized:
    its = matched(run).operations
    ranks = group_sizes(run).ints("group_size")  # in the same order
    arrival = its.ints("first_arrival_ns")
    order = np.lexsort((its.ints("operation"), arrival, arrival == NULL))
    first = nth(codes(its.coded("communicator").take(order))) == 0
    known = its.coded("op").where(lambda op: op != "barrier") & ((ranks == NULL) | (ranks > 1))
    known &= np.logical_and.reduce([its.ints(name) != NULL for name in _NEEDED])
    known &= (its.ints("size_bytes") > 0) & (its.ints("transfer_ns") > 0)
    rows, first = order[known[order]].astype(np.int32), first[known[order]]
    return _Sized(rows, _cold(its.take(rows), first))


def _cold(known: Rows, first: Bool) -> Bool:
    """Which of the first took far longer than the others of their kind, or are alone."""
    kind, transfer = codes(*(known.columns[name] for name in KIND)), known.ints("transfer_ns")
    usual = quantiles(kind[~first], transfer[~first], 50, kind.max(initial=-1) + 1)
    cold: Bool = first & ~(transfer <= _FAR_LONGER * usual[kind])  # NaN where there are no others
    return cold


def _served(run: Measures, rows: Int32) -> Rows:
    """The columns of operations are unpacked when they are asked for."""
    its, ranks = matched(run).by_operation.some(rows), group_sizes(run).ints("group_size")[rows]
    kind = codes(its.coded("op"), ranks)
    alike = first_rows(kind)
    ops = its.coded("op").take(alike).decoded()
    factors = [
        bus_factor(str(op), n) if n > 0 else None
        for op, n in zip(ops, ranks[alike].tolist(), strict=True)
    ]
    factor = np.array([*factors, None], dtype=np.float64)[kind]
    busbw = its.ints("size_bytes") * factor / its.ints("transfer_ns")
    busbw[moved_before(run)[rows]] = np.nan
    more = {"ranks": ranks, "factor": factor, "busbw_gb_s": busbw}
    return its.having(SERVED, more)


def typical_ns(known: Rows) -> Float64:
    """Of each operation, the median transfer of its kind."""
    kind = codes(*(known.columns[name] for name in KIND))
    times = quantiles(kind, known.ints("transfer_ns"), 50, kind.max(initial=-1) + 1)
    typical: Float64 = times[kind]
    return typical


def fitted(known: Rows) -> Model | None:
    """The model of operations of one kind but for their sizes, if it fits well."""
    model = fit(known.ints("size_bytes"), known.ints("transfer_ns"))
    return model if model is not None and model.residual <= _MAX_RESIDUAL else None


def hidden(known: Rows, run: Measures) -> Float64:
    """Of each operation, the share of it during which its devices computed: the ranks' mean."""
    called, of = run.rows("collectives"), operation_of(run)
    start, duration = called.ints("start_ns"), called.ints("duration_ns")
    share: Float64 = np.zeros(start.size)
    for place, done in device_activity(run).items():
        at = calls_by_device(run)[place]
        if done.compute is not None:
            inside = covered(start[at], start[at] + duration[at], done.compute)
            share[at] = inside / np.maximum(duration[at], 1)
    mean = np.bincount(of, share) / np.bincount(of)
    numbers = matched(run).operations.ints("operation")
    found: Float64 = mean[np.searchsorted(numbers, known.ints("operation"))]
    return found


def on_gpus(known: Rows, run: Measures) -> Bool:
    """Which of these operations GPUs move."""
    moved: Bool = _moved_by_gpus(run)[known.ints("operation")]
    return moved


@measure
def _moved_by_gpus(run: Measures) -> Bool:
    """By an operation's number: rules ask for each group."""
    on_cpu = run.rows("collectives").coded("device").being("cpu")
    number = matched(run).waits.ints("operation")
    found = np.zeros(int(number.max(initial=-1)) + 1, np.bool_)
    found[number[~on_cpu]] = True
    return found


def streams(known: Rows, run: Measures) -> tuple[int, ...]:
    """The streams that these operations ran on."""
    ran = np.isin(matched(run).waits.ints("operation"), known.ints("operation"))
    return tuple(distinct(run.rows("collectives").ints("stream")[ran]).tolist())
