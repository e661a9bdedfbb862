"""Which ranks behave alike: groups of them by where the time of their steps goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, codes, distinct, first_rows
from commtrace.measures import measure
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.rank_places import Axis, common_place, rank_axes
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import profiler_steps, step_count, whole
from commtrace.quantiles import median, medians, quantile, quantiles
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ALIKE_RANKS", "PARTS", "alike_ranks"]

_WAIT = "exposed_wait_ns"
PARTS = ("compute_ns", "exposed_communication_ns", _WAIT, "idle_ns")
"""What ranks are compared by."""
_OWN = ("compute_ns", "idle_ns")  # where these differ communication does, too: others wait

_APART = 0.03  # of a typical step: less is no difference
_SPREADS = 1.5  # interquartile ranges on either side of a gap
_ERRORS = 3  # standard errors of the medians

ALIKE_RANKS = Table(
    "alike_ranks",
    "a group of ranks that behave alike, the largest first, then those that differ most from it; "
    "times are medians of the ranks' means per step, without steps of the whole run. Groups are "
    "apart by a gap in one of the times, of ranks or of the medians of hosts and of places along "
    "dimensions, which is wider than 3 % of a step and than their spread on its sides",
    (
        Column("ranks", "category", "Its ranks: `0,1,2`."),
        Column("count", "int64", "How many they are.", "ranks"),
        Column(
            "place",
            "category",
            "The hosts, or places along a dimension, that tell them from others: `host a`, `pp 2`; "
            "else those that all of them share; null without any.",
        ),
        Column("compute_ns", "int64", "Compute, also during communication.", "ns"),
        Column("exposed_communication_ns", "int64", "Communication without compute.", "ns"),
        Column(
            "exposed_wait_ns",
            "Int64",
            "Of that, waiting for other ranks; null where their clocks can hide more of it than "
            "groups are apart.",
            "ns",
        ),
        Column("idle_ns", "int64", "While nothing ran.", "ns"),
        Column(
            "differs_in",
            "category",
            "The time that differs most from the first group's, of communication if it differs "
            "twice as much as compute and idle; null for the first.",
        ),
        Column("difference_ns", "int64", "By how much; 0 for the first.", "ns"),
    ),
)


@measure
def alike_ranks(run: Measures) -> Rows:
    """The ranks in groups that behave alike, as ``ALIKE_RANKS``.

    Times of several devices are summed; ranks of whose devices none is known are in no group.
    """
    ranks, times, step_ns = _per_step(run)
    if not ranks.size:
        return ALIKE_RANKS.rows()
    least = _APART * step_ns
    known = [part for part in PARTS if part != _WAIT or _hidden_wait_ns(run) <= least]
    values = np.stack([times[part] for part in known], axis=1)
    axes = rank_axes(run, ranks)
    groups = [
        group
        for gathered in _gathered(values, least)
        for group in _by_place(values, axes, gathered, least)
    ]
    groups.sort(key=lambda group: (-group.size, group[0]))
    usual = [np.rint(medians(values[group], axis=0)).astype(np.int64) for group in groups]
    table = [
        {
            "ranks": ",".join(map(str, ranks[group].tolist())),
            "count": group.size,
            "place": common_place(axes, group),
            _WAIT: None,
            **dict(zip(known, its.tolist(), strict=True)),
            **_difference(known, its - usual[0]),
        }
        for group, its in zip(groups, usual, strict=True)
    ]
    table[0]["differs_in"] = None
    return ALIKE_RANKS.of_dicts([table[0], *sorted(table[1:], key=_most_first)])


def _difference(known: Sequence[str], beside: Int64) -> dict[str, Any]:
    weight = [1.0 if part in _OWN else 0.5 for part in known]
    most = int(np.abs(beside * weight).argmax())
    return {"differs_in": known[most].removesuffix("_ns"), "difference_ns": int(beside[most])}


def _most_first(row: dict[str, Any]) -> int:
    return -abs(int(row["difference_ns"]))


def _per_step(run: Measures) -> tuple[Int64, dict[str, Float64], float]:
    """The ranks, the parts of each, and how long a typical step is."""
    waits = {(its["rank"], its["device"]): its[_WAIT] for its in exposed_waits(run).dicts()}
    known = [
        {**its, _WAIT: waits[its["rank"], its["device"]]}
        for its in devices(run).dicts()
        if its["span_ns"] is not None and (its["rank"], its["device"]) in waits
    ]
    rank = np.asarray([its["rank"] for its in known], dtype=np.int64)
    ranks, place = np.unique(rank, return_inverse=True)
    steps = np.ones(ranks.size, dtype=np.int64)
    if whole(run).in_steps:
        table = profiler_steps(run)
        once = first_rows(codes(table.ints("rank"), table.ints("step")))
        marked, count = np.unique(table.ints("rank")[once], return_counts=True)
        has_steps = np.isin(ranks, marked)
        steps[has_steps] = count[np.searchsorted(marked, ranks[has_steps])]
    times = {
        name: np.bincount(place, [its[name] for its in known], ranks.size) / steps
        for name in ("span_ns", *PARTS)
    }
    step_ns = median(times.pop("span_ns")) if ranks.size else 0.0
    return ranks, times, step_ns


def _hidden_wait_ns(run: Measures) -> float:
    """How much waiting of a rank in a step may be too short for the clocks to tell."""
    found, steps = matched(run), step_count(run)
    error_ns = int(found.clock.ints("error_ns").max(initial=NULL))
    if error_ns == NULL:
        return np.inf
    return float(TRUST * error_ns) * len(found.waits) / max(len(run.rows("ranks")), 1) / steps


def _gathered(values: Float64, least: float) -> list[Int64]:
    """The ranks between the same gaps of every part."""
    classes = np.stack([_classes(part, least) for part in values.T])
    _, group = np.unique(classes, axis=1, return_inverse=True)
    return _places_of(group.reshape(-1))


def _by_place(values: Float64, axes: Sequence[Axis], group: Int64, least: float) -> Iterator[Int64]:
    """A group in parts, as long as the medians of hosts, or of a dimension's places, are apart.

    It is divided where a part has the widest gap first.
    """
    best, classes = 0.0, None
    for its in axes:
        occurring, at = np.unique(its.place[group], return_inverse=True)
        for part in values[group].T:
            usual = quantiles(at, part, 50, occurring.size)
            error = _spread(part - usual[at]) / np.sqrt(group.size / usual.size)
            found = _classes(usual, max(least, _ERRORS * error))
            gaps = np.diff(np.sort(usual))
            if found.any() and gaps.max() > best:
                best, classes = float(gaps.max()), found[at]
    if classes is None:
        yield group
        return
    for part_of in _places_of(classes):
        yield from _by_place(values, axes, group[part_of], least)


def _classes(values: Float64, least: float) -> Int64:
    """Between which gaps each value is: those wider than ``least`` and than the spread beside."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    gap = np.diff(ordered)
    cuts = (np.flatnonzero(gap > least) + 1).tolist()
    while cuts:
        ends = [0, *cuts, ordered.size]
        spread = [_spread(ordered[a:b]) for a, b in pairwise(ends)]
        margin = [
            gap[cut - 1] - _SPREADS * max(spread[at], spread[at + 1]) for at, cut in enumerate(cuts)
        ]
        if min(margin) > 0:
            break
        del cuts[int(np.argmin(margin))]
    classes: Int64 = np.empty(values.size, np.int64)
    classes[order] = np.searchsorted(cuts, np.arange(values.size), side="right")
    return classes


def _spread(values: Float64) -> float:
    """The interquartile range."""
    return quantile(values, 0.75) - quantile(values, 0.25)


def _places_of(groups: Int64) -> list[Int64]:
    return [np.flatnonzero(groups == each) for each in distinct(groups).tolist()]
