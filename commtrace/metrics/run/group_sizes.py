"""How many ranks an operation's group has: as the trace tells, or as can be deduced.

That an operation was matched on every rank of the job is no proof that it was one: two
groups of half of them in step look the same. But a synchronising operation ends when the
last has come. Where that one came late by far more than the ends differ, time after time,
everybody waited for it, and they were one group: of two groups, the one without it would
have ended so much earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Int64, integers
from commtrace.comms import SYNCHRONISING
from commtrace.matching import SAME_HOST_ERROR_NS
from commtrace.measures import measure
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import RunOperations, matched
from commtrace.table import Coded, Column, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DEDUCED", "GROUP_SIZES", "group_sizes"]

SURE = 3  # the last rank is late by this many times what the ends differ
SHOWN = 10  # operations of a kind that must show it
SHOWN_AT_PLACE = 3  # of these, at each place in the step
_NEVER = np.iinfo(np.int64).max
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
def group_sizes(run: Measures) -> pd.DataFrame:
    """The group size of every operation, known or deduced: GROUP_SIZES.

    What one of its ranks knows outranks what is deduced; where ranks deduce different sizes
    from their groups, it is unknown.
    """
    found, of = matched(run), operation_of(run)
    operation = integers(found.operations["operation"])
    size = integers(run.collective_columns["group_size"])
    deduced = run.collective_columns["group_provenance"].eq("deduced").to_numpy()
    its = np.flatnonzero(~deduced & (size != NULL))[::-1]
    known = np.full(operation.size, NULL)
    known[of[its]] = size[its]
    listed = np.flatnonzero(deduced & (size != NULL))
    least, most = np.full(operation.size, _NEVER), np.full(operation.size, NULL)
    np.minimum.at(least, of[listed], size[listed])
    np.maximum.at(most, of[listed], size[listed])
    of_groups = (known == NULL) & (least == most)
    unknown = operation[(known == NULL) & (most == NULL)]
    world_size = (_world_size(run) if unknown.size else None) or 0
    of_ranks = _of_all_ranks(run, found, unknown, world_size) if world_size else unknown[:0]
    waited = np.isin(operation, of_ranks)
    known[of_groups] = least[of_groups]
    known[waited] = world_size
    return GROUP_SIZES.frame(
        {
            "operation": operation,
            "group_size": known,
            DEDUCED.name: Coded(np.where(waited, 1, of_groups - 1).astype(np.int32), _HOW),
        }
    )


def _of_all_ranks(run: Measures, found: RunOperations, unknown: Int64, world_size: int) -> Int64:
    """The operations, of some, that all ranks of the job were in.

    All operations of one kind or none: with some of them at odds, who knows of the rest.
    """
    its = found.operations.frame().set_index("operation").loc[unknown]
    its = its[its["op"].isin(SYNCHRONISING)]
    if its.empty:
        return unknown[:0]
    step = run.collective_columns["step"].groupby(found.waits["operation"].to_numpy()).min()
    kinds = its.groupby(["op", "group", "dtype", "size_bytes"], observed=True, dropna=False)
    its = its.assign(kind=kinds.ngroup(), step=step).sort_values("first_arrival_ns", kind="stable")
    its = its.assign(place=its.groupby(["kind", "step"], dropna=False).cumcount())
    its = its[["kind", "step", "place"]].join(_ends(found, its.index, world_size))
    return its.groupby("kind").filter(_one_group).index.to_numpy(np.int64)


def _world_size(run: Measures) -> int | None:
    """The job's size, if every rank has a trace and none lists groups without one of that size."""
    (size, *others) = run.ranks["world_size"].unique().tolist() or [None]
    if others or pd.isna(size) or set(run.ranks["rank"]) != set(range(size)):
        return None
    whole = run.groups["size"].eq(size).groupby(run.groups["rank"]).any()
    return int(size) if size > 1 and whole.all() else None


def _ends(found: RunOperations, operations: pd.Index[Any], world_size: int) -> pd.DataFrame:
    """Of operations that were found on all ranks: what it says that they were one.

    ``late_ns`` is how much later the last rank came than the second-last, ``end_spread_ns`` how
    far apart the ranks were done; ``shown`` if that can only be one group, but for chance.
    """
    rows = found.waits[["operation", "arrival_ns", "end_ns"]].dropna()
    rows = rows[rows["operation"].isin(operations)].astype("int64")
    rows = rows[rows.groupby("operation")["operation"].transform("size") == world_size]
    rows = rows.sort_values(["operation", "arrival_ns"])
    arrival, end = (
        rows[name].to_numpy().reshape(-1, world_size) for name in ("arrival_ns", "end_ns")
    )
    error_ns = TRUST * int(found.clock["error_ns"].fillna(0).clip(lower=SAME_HOST_ERROR_NS).max())
    late_ns, end_spread_ns = arrival[:, -1] - arrival[:, -2], np.ptp(end, axis=1)
    causal = end.min(axis=1) + error_ns >= arrival[:, -1]
    shown = causal & (late_ns > error_ns) & (late_ns >= SURE * end_spread_ns)
    columns = {"late_ns": late_ns, "end_spread_ns": end_spread_ns, "shown": shown}
    return pd.DataFrame(columns, index=rows["operation"].to_numpy()[::world_size])


def _one_group(kind: pd.DataFrame) -> bool:
    """Whether the operations of a kind show that each was one, of all ranks.

    Where some directly follow others, all ranks come at once, and nothing tells groups in
    step apart: so each place in the step must show it. And that the last came later now
    and then must not show in the ends: else slower groups could make up for it.
    """
    if kind[["shown", "step"]].isna().any(axis=None):
        return False
    shown, place = kind["shown"].to_numpy(dtype=bool), kind["place"].to_numpy()
    at_place, called = np.bincount(place[shown], minlength=place.max() + 1), np.bincount(place)
    return bool(
        shown.sum() >= SHOWN
        and at_place.min() >= SHOWN_AT_PLACE
        and (at_place > SHOWN_SHARE * called).all()
        and np.std(kind["late_ns"][shown]) > SURE * np.std(kind["end_spread_ns"][shown])
    )
