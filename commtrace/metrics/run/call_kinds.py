"""The rows of ``collectives`` by kind, and what each kind cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Float64, Int64, codes, first_rows, most, sums
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import calls_by_device, device_activity
from commtrace.metrics.run.group_dimensions import DIMENSION, group_dimensions
from commtrace.metrics.run.group_names import spoken_names
from commtrace.metrics.run.group_sizes import DEDUCED, group_sizes
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.varying_sizes import typical_sizes
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Kinds", "costs", "intervals", "kinds", "known_or_none", "rounded"]


_SIZE = "size_bytes"


class _Events(Struct, frozen=True, eq=False):
    """The rows of ``collectives``, with what their operations tell.

    ``named`` has what kinds are made of; ``of`` is the row of ``operations`` of each, ``shared``
    whether another operation has the same interval, of which ``interval`` is the number.
    """

    named: dict[str, Int64 | Coded]
    size_bytes: Int64
    rank: Int64
    device: Coded
    start_ns: Int64
    end_ns: Int64
    wait_ns: Int64
    executed: Coded
    deduced: Coded
    communicator: Coded
    of: Int64
    interval: Int64
    shared: Bool


class Kinds(Struct, frozen=True, eq=False):
    """The rows of ``collectives`` by kind.

    ``of`` is the number of each row's kind, ``kernel`` one of each interval of a kind; ``rows`` are
    the values that make a kind, by name.
    """

    events: _Events
    of: Int64
    kernel: Int64
    rows: list[dict[str, Any]]


def kinds(run: Measures, names: Sequence[str], *, by_dimension: bool = False) -> Kinds:
    """The rows of ``collectives`` by kind, which is what these columns make.

    With ``by_dimension``, groups of a known dimension have no name, others that are numbered the
    one that describes them, and sizes that vary from step to step are their median.

    An operation is of one kind on all its ranks, whatever each of them calls the group;
    of an uneven all_to_all the largest array counts.
    """
    its = _events(run)
    named = dict(its.named)
    group, dimension = named["group"], named["dimension"]
    if by_dimension and isinstance(group, Coded) and isinstance(dimension, Coded):
        alone = np.where(dimension.codes < 0, group.codes, np.int32(-1))
        spoken = spoken_names(run.rows("groups"))
        named["group"] = Coded(alone, tuple(spoken.get(name, name) for name in group.names))
        unsized = codes(*(named[name] for name in names if name != _SIZE))
        named[_SIZE] = typical_sizes(unsized, its.size_bytes, run.rows("collectives").ints("step"))
    columns = [named[name] for name in names]
    kind = codes(*columns)
    first = first_rows(kind)
    values = [
        column.take(first).decoded()
        if isinstance(column, Coded)
        else [None if value == NULL else value for value in column[first].tolist()]
        for column in columns
    ]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return Kinds(its, kind, codes(kind, its.interval), rows)


def _events(run: Measures) -> _Events:
    table, its, of = run.rows("collectives"), matched(run).operations, operation_of(run)
    sizes = group_sizes(run)  # which is in the order of operations, too
    start_ns, interval = table.ints("start_ns"), intervals(run)
    communicator, size_bytes = its.coded("communicator").take(of), its.ints(_SIZE)[of]
    return _Events(
        named={
            "op": table.coded("op"),
            **{name: _first(table.coded(name), of) for name in ("group", "dtype")},
            **_dimensions(run, communicator),
            "group_size": sizes.ints("group_size")[of],
            _SIZE: size_bytes,
        },
        size_bytes=size_bytes,
        rank=table.ints("rank"),
        device=table.coded("device"),
        start_ns=start_ns,
        end_ns=start_ns + table.ints("duration_ns"),
        wait_ns=matched(run).waits.ints("wait_ns"),
        executed=table.coded("executed"),
        deduced=sizes.coded(DEDUCED.name).take(of),
        communicator=communicator,
        of=of,
        interval=interval,
        shared=np.bincount(interval)[interval] > 1,
    )


def intervals(run: Measures) -> Int64:
    """A number for the kernel of each row of ``collectives``: coalesced operations share one."""
    table = run.rows("collectives")
    times = (table.ints(name) for name in ("stream", "start_ns", "duration_ns"))
    return codes(table.ints("rank"), table.coded("device"), *times)


def _dimensions(run: Measures, communicator: Coded) -> dict[str, Coded]:
    known = {row["communicator"]: row for row in group_dimensions(run).dicts()}
    found = {}
    for column in (one.name for one in DIMENSION):
        of_group = Coded.of([*(known[name][column] for name in communicator.names), None])
        found[column] = of_group.take(communicator.codes)
    return found


def _first(names: Coded, of: Int64) -> Coded:
    """The first name that there is among the rows of each number, for every row."""
    first = np.full(of.max(initial=-1) + 1, -1, np.int32)
    known = np.flatnonzero(names.codes >= 0)[::-1]
    first[of[known]] = names.codes[known]
    return Coded(first[of], names.names)


def costs(run: Measures, each: Kinds) -> dict[str, list[Any]]:
    """Of each kind, operations and groups, and the time that they took from the ranks."""
    its, count = each.events, len(each.rows)
    kernels = first_rows(each.kernel)
    operations = first_rows(codes(each.of, its.of))
    groups = first_rows(codes(each.of, its.communicator.codes))
    groups = groups[its.communicator.codes[groups] >= 0]
    sizes = first_rows(codes(each.of, its.size_bytes))
    duration_ns = its.end_ns[kernels] - its.start_ns[kernels]
    return {
        "count": np.bincount(each.of[operations], minlength=count).tolist(),
        "groups": np.bincount(each.of[groups], minlength=count).tolist(),
        "sizes": np.bincount(each.of[sizes], minlength=count).tolist(),
        "duration_ns_total": sums(each.of[kernels], duration_ns, count).tolist(),
        "wait_ns_total": _waiting(each, kernels),
        "exposed_ns": _exposed_per_rank(each, run),
    }


def _waiting(each: Kinds, kernels: Int64) -> list[int | None]:
    """Each kind's waiting; a rank waits once in a kernel, however many operations share it."""
    longest = most(each.kernel, each.events.wait_ns, kernels.size)
    known, kind = longest != NULL, each.of[kernels]
    total = sums(kind[known], longest[known], len(each.rows))
    return known_or_none(total, np.bincount(kind[known], minlength=len(each.rows)) > 0)


def _exposed_per_rank(each: Kinds, run: Measures) -> list[int | None]:
    """Each rank's sum, then the mean over the ranks that took part."""
    exposed = _exposed_ns(each, run)
    known = ~np.isnan(exposed)
    kind, rank = each.of[known], each.events.rank[known]
    place = codes(kind, rank)
    of_rank = np.bincount(place, exposed[known])
    kind = kind[first_rows(place)]
    count = np.bincount(kind, minlength=len(each.rows))
    total = np.bincount(kind, of_rank, len(each.rows))
    return rounded(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _exposed_ns(each: Kinds, run: Measures) -> Float64:
    """Of each row, the time that neither compute on its device nor its kind's rows before cover.

    NaN if the compute is unknown.
    """
    its = each.events
    place = codes(each.of, its.rank, its.device.codes)
    order = np.lexsort((its.start_ns, place))
    # The times in order are small numbers, so that those of each place get a range of their own.
    times, number = np.unique(its.end_ns[order], return_inverse=True)
    reach = np.maximum.accumulate(place[order] * times.size + number)
    follows = np.diff(place[order], prepend=-1) == 0
    before = np.full(order.size, NULL)
    before[order[follows]] = times[reach[:-1] % max(times.size, 1)][follows[1:]]
    start = np.minimum(np.maximum(its.start_ns, before), its.end_ns)
    exposed: Float64 = (its.end_ns - start).astype(np.float64)
    for device, done in device_activity(run).items():
        at, compute = calls_by_device(run)[device], done.compute
        end = its.end_ns[at]
        exposed[at] -= np.nan if compute is None else covered(start[at], end, compute)
    return exposed


def known_or_none(values: Int64, known: Bool) -> list[int | None]:
    """The values that are known; None for the others."""
    return [
        value if its else None for value, its in zip(values.tolist(), known.tolist(), strict=True)
    ]


def rounded(values: Float64) -> list[int | None]:
    """The nearest integers; None for NaN."""
    return [None if np.isnan(value) else round(value) for value in values.tolist()]
