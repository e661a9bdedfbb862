"""How many ranks an operation's group has: as the trace tells, or as can be deduced.

That an operation was matched on every rank of the job is no proof that it was one: two
groups of half of them in step look the same. But a synchronising operation ends when the
last has come. Where that one came late by far more than the ends differ, time after time,
everybody waited for it, and they were one group: of two groups, the one without it would
have ended so much earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, least, most, nth, rows_of_each
from commtrace.comms import SYNCHRONISING
from commtrace.matching import SAME_HOST_ERROR_NS
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DEDUCED", "GROUP_SIZES", "group_sizes"]

SURE = 3  # the last rank is late by this many times what the ends differ
SHOWN = 10  # operations of a kind that must show it
SHOWN_AT_PLACE = 3  # of these, at each place in the step
_HOW = ("groups", "ranks")
SHOWN_SHARE = 0.75  # of the operations at each place, more than this

DEDUCED = Column(
    "group_size_deduced",
    "category",
    "Where the group's size is not from the operation: `groups` (all groups that the trace "
    "lists have it), `ranks` (all ranks of the job were shown to wait for each other); else null.",
)
GROUP_SIZES = Table(
    "group_sizes",
    "one operation of the run, in the order of its number",
    (
        Column("operation", "int64", "Its number."),
        Column("group_size", "Int64", "Ranks in its group; null if unknown.", "ranks"),
        DEDUCED,
    ),
)


@measure
def group_sizes(run: Measures) -> Rows:
    """The group size of every operation, known or deduced: GROUP_SIZES.

    What one of its ranks knows outranks what is deduced; where ranks deduce different sizes
    from their groups, it is unknown.
    """
    called, of = run.rows("collectives"), operation_of(run)
    operation = matched(run).operations.ints("operation")
    size, deduced = called.ints("group_size"), called.coded("group_provenance").being("deduced")
    its = np.flatnonzero(~deduced & (size != NULL))[::-1]
    known = np.full(operation.size, NULL)
    known[of[its]] = size[its]
    listed = np.flatnonzero(deduced & (size != NULL))
    lowest, highest = (find(of[listed], size[listed], known.size) for find in (least, most))
    of_groups = (known == NULL) & (lowest == highest)
    unknown = np.flatnonzero((known == NULL) & (highest == NULL))
    world_size = (_world_size(run) if unknown.size else None) or 0
    waited = np.zeros(known.size, np.bool_)
    if world_size:
        waited[_of_all_ranks(run, unknown, world_size)] = True
    known[of_groups] = lowest[of_groups]
    known[waited] = world_size
    return GROUP_SIZES.rows(
        {
            "operation": operation,
            "group_size": known,
            DEDUCED.name: Coded(np.where(waited, 1, of_groups - 1).astype(np.int32), _HOW),
        }
    )


def _of_all_ranks(run: Measures, unknown: Int64, world_size: int) -> Int64:
    """The rows of ``operations``, of some, that all ranks of the job were in.

    All operations of one kind or none: with some of them at odds, who knows of the rest.
    """
    its = matched(run).operations
    at: Int64 = unknown[its.coded("op").where(SYNCHRONISING.__contains__)[unknown]]
    arrival = its.ints("first_arrival_ns")[at]
    at = at[np.lexsort((arrival, arrival == NULL))]
    named = (its.coded(name).take(at) for name in ("op", "group", "dtype"))
    kind = codes(*named, its.ints("size_bytes")[at])
    step = _steps(run)[at]
    place = nth(codes(kind, step))
    known = (step != NULL) & (_count(run)[at] == world_size)
    clear = (np.bincount(kind, ~known) == 0)[kind]
    at, kind, place = at[clear], kind[clear], place[clear]
    if not at.size:
        return at
    ends = _ends(run, at, world_size)
    each = rows_of_each(kind, distinct(kind))
    sure = [at[mine] for mine in each if _one_group(ends.of(mine), place[mine])]
    return np.concatenate([at[:0], *sure])


def _steps(run: Measures) -> Int64:
    """The step of each operation, the first of its rows'; NULL where none is in a step."""
    of, step = operation_of(run), run.rows("collectives").ints("step")
    known = step != NULL
    found = np.full(len(matched(run).operations), NULL)
    found[of[known]] = least(of[known], step[known], found.size)[of[known]]
    return found


def _world_size(run: Measures) -> int | None:
    """The job's size, if every rank has a trace and none lists groups without one of that size."""
    ranks, groups = run.rows("ranks"), run.rows("groups")
    said, listing = ranks.ints("world_size"), groups.ints("rank")
    size = int(said.max(initial=NULL))
    if size < 2 or (said != size).any() or set(ranks.ints("rank").tolist()) != set(range(size)):
        return None
    whole = np.isin(listing, listing[groups.ints("size") == size])
    return size if whole.all() else None


def _timed(run: Measures) -> Bool:
    """Which rows of ``waits`` have times."""
    waits = matched(run).waits
    timed: Bool = (waits.ints("arrival_ns") != NULL) & (waits.ints("end_ns") != NULL)
    return timed


def _count(run: Measures) -> Int64:
    """On how many ranks each operation was found."""
    return np.bincount(operation_of(run)[_timed(run)], minlength=len(matched(run).operations))


class _Ends(Struct, frozen=True):
    """Of operations that were found on all ranks: what it says that they were one.

    ``late_ns`` is how much later the last rank came than the second-last, ``end_spread_ns`` how
    far apart the ranks were done; ``shown`` if that can only be one group, but for chance.
    """

    late_ns: Int64
    end_spread_ns: Int64
    shown: Bool

    def of(self, some: Int64) -> _Ends:
        """Those of some of the operations."""
        return _Ends(self.late_ns[some], self.end_spread_ns[some], self.shown[some])


def _ends(run: Measures, operations: Int64, world_size: int) -> _Ends:
    found = matched(run)
    place = np.full(len(found.operations), -1)
    place[operations] = np.arange(operations.size)
    of = place[operation_of(run)]
    mine = np.flatnonzero((of >= 0) & _timed(run))
    arrival, end = (found.waits.ints(name)[mine] for name in ("arrival_ns", "end_ns"))
    order = np.lexsort((arrival, of[mine]))
    arrival, end = (times[order].reshape(-1, world_size) for times in (arrival, end))
    error_ns = TRUST * int(found.clock.ints("error_ns").max(initial=SAME_HOST_ERROR_NS))
    late_ns, end_spread_ns = arrival[:, -1] - arrival[:, -2], np.ptp(end, axis=1)
    causal = end.min(axis=1) + error_ns >= arrival[:, -1]
    shown = causal & (late_ns > error_ns) & (late_ns >= SURE * end_spread_ns)
    return _Ends(late_ns, end_spread_ns, shown)


def _one_group(kind: _Ends, place: Int64) -> bool:
    """Whether the operations of a kind show that each was one, of all ranks.

    Where some directly follow others, all ranks come at once, and nothing tells groups in
    step apart: so each place in the step must show it. And that the last came later now
    and then must not show in the ends: else slower groups could make up for it.
    """
    shown = kind.shown
    at_place, called = np.bincount(place[shown], minlength=place.max() + 1), np.bincount(place)
    return bool(
        shown.sum() >= SHOWN
        and at_place.min() >= SHOWN_AT_PLACE
        and (at_place > SHOWN_SHARE * called).all()
        and np.std(kind.late_ns[shown]) > SURE * np.std(kind.end_spread_ns[shown])
    )
