"""How long one rank's compute kernels take while communication runs on their GPU, and alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, first_rows, in_order, numbered, sums
from commtrace.intervals import covered
from commtrace.measures import rank_measure
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.table import Coded, Column, Columns, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["KERNELS_BESIDE", "covered_shares", "kernels_beside"]

_WAYS = ("beside", "alone")
_BESIDE = 0.8  # of a kernel's time
_NEIGHBOURS = (-2, -1, 1, 2)  # along a stream


def _of_way(way: str) -> tuple[Column, ...]:
    return (
        Column(f"count_{way}", "int64", f"How many ran {way}.", "kernels"),
        Column(f"median_{way}", "float64", "Their median duration.", "ns"),
        Column(f"spread_{way}", "float64", "Their middle half, as a share of it.", "percent"),
    )


KERNELS_BESIDE = Table(
    "kernels_beside",
    "the compute kernels of one name on one GPU, between the same two before and two behind, of "
    "which some ran beside communication, for at least four fifths of their time, and some alone",
    (
        Column("rank", "int64", "The rank."),
        Column("device", "category", "torch's name, with the trace's own number."),
        Column("name", "category", "The kernels' name."),
        *(column for way in _WAYS for column in _of_way(way)),
        Column(
            "as_long",
            "int64",
            "How many ran alone and took as long as the first quartile of those beside.",
            "kernels",
        ),
        Column("touched", "int64", "How many ran beside communication at all.", "kernels"),
        Column("touched_ns", "int64", "Their durations' sum.", "ns"),
        Column(
            "all_beside_ns",
            "float64",
            "How long any compute kernel of the GPU ran beside communication, summed.",
            "ns",
        ),
    ),
)


@rank_measure
def kernels_beside(run: Measures, rank: int) -> Columns:
    """The rank's rows of ``KERNELS_BESIDE``.

    One name has many shapes: what runs before and behind, as in the next layer, tells them apart.
    """
    its = rows_of_rank(run, "kernels", rank)
    name, device, kind = its.coded("name"), its.coded("device"), its.coded("kind")
    rows = np.flatnonzero(kind.being("compute") & (device.codes >= 0) & (name.codes >= 0))
    duration = its.ints("duration_ns")[rows]
    share = covered_shares(run, rank, device, its.ints("start_ns"), its.ints("duration_ns"))[rows]
    at = device.codes[rows].astype(np.int64)
    of_kind = numbered(at, *_with_neighbours(its.take(rows)))
    first = first_rows(of_kind)
    kinds = first.size
    alone, beside = share == 0, share >= _BESIDE
    touched = np.bincount(of_kind[~alone], minlength=kinds)
    touched_ns = sums(of_kind[~alone], duration[~alone], kinds)
    found: dict[str, Any] = {"touched": touched, "touched_ns": touched_ns}
    for way, which in zip(_WAYS, (beside, alone), strict=True):
        found |= _spread(of_kind[which], duration[which], kinds, way)
    long = alone & (duration >= found.pop("low_beside")[of_kind])
    found["as_long"] = np.bincount(of_kind[long], minlength=kinds)
    del found["low_alone"]
    both = np.argsort(first)  # the tables of one rank and of all number names in another order
    both = both[(found["count_beside"] > 0)[both] & (found["count_alone"] > 0)[both]]
    one = rows[first[both]]
    beside_ns = np.bincount(at, duration * share, len(device.names))
    return {
        "rank": np.full(one.size, rank),
        "device": device.take(one),
        "name": name.take(one),
        "all_beside_ns": beside_ns[device.codes[one]],
        **{column: values[both] for column, values in found.items()},
    }


def _with_neighbours(kernels: Rows) -> list[Int64]:
    """The name of each and of those beside it on its stream, at whose ends there is one more."""
    name = kernels.coded("name").codes.astype(np.int64)
    device, stream = kernels.coded("device").codes.astype(np.int64), kernels.ints("stream")
    order = in_order(device, stream, kernels.ints("start_ns"))
    of = numbered(device, stream)[order]
    begins = first_rows(of)
    ends = np.append(begins[1:], order.size) - 1
    place, found = np.arange(order.size), [name]
    for offset in _NEIGHBOURS:
        there = np.clip(place + offset, begins[of], ends[of])
        beside = np.empty_like(name)
        beside[order] = name[order][there]
        found.append(beside)
    return found


def covered_shares(
    run: Measures, rank: int, device: Coded, start: Int64, duration: Int64
) -> Float64:
    """Of each of a rank's events, the share in which communication runs on its device."""
    share = np.zeros(start.size)
    work = device_activity(run)
    for code, place in enumerate(device.names):
        at = np.flatnonzero(device.codes == code)
        if at.size and (done := work.get(Device(rank, place))):
            ns = covered(start[at], start[at] + duration[at], done.communication)
            share[at] = ns / duration[at].clip(min=1)
    return share


def _spread(of_kind: Int64, duration: Int64, kinds: int, way: str) -> dict[str, Any]:
    """How many there are of each kind, their median, and how wide their middle half is."""
    order = np.lexsort((duration, of_kind))
    count = np.bincount(of_kind, minlength=kinds)
    first = np.cumsum(count) - count
    some = count > 0
    low, middle, high = (
        _quantile(duration[order].astype(np.float64), first, count, some, q)
        for q in (0.25, 0.5, 0.75)
    )
    return {
        f"low_{way}": low,
        f"count_{way}": count,
        f"median_{way}": middle,
        f"spread_{way}": 100 * (high - low) / middle.clip(min=1),
    }


def _quantile(values: Float64, first: Int64, count: Int64, some: Bool, q: float) -> Float64:
    """Of each stretch of sorted values, between its two nearest; NaN of none."""
    found = np.full(count.size, np.nan)
    place = q * (count[some] - 1)
    lower = first[some] + place.astype(np.int64)
    upper = np.minimum(lower + 1, first[some] + count[some] - 1)
    found[some] = values[lower] + (values[upper] - values[lower]) * (place % 1)
    return found
