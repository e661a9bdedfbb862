"""Each rank's operations as slices: waiting apart from transfer, arrows from who was waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Int64, integers
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.call_kinds import intervals
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.group_sizes import group_sizes
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import matched
from commtrace.table import rows
from commtrace.units import cut, numbered
from commtrace.viewer.slices import Slice, Timeline, apart, draw

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["draw_operations", "draw_waited_for", "operations_drawn", "undrawn_arrows"]

_ARGUMENTS = (
    "executed",
    "dimension",
    "group",
    "communicator",
    "group_size",
    "seq",
    "step",
    "dtype",
    "size_bytes",
    "busbw_gb_s",
    "bound",
    "wait_ns",
    "caused_wait_ns",
    "last_rank",
    "transfer_ns",
    "matched_by",
    "present",
    "expected",
    "root",
    "peer",
    "provenance",
)
_OWN = ("rank", "op", "executed", "group", "seq", "step", "dtype", "root", "peer", "provenance")
_OF_OPERATION = (
    *("communicator", "exact", "size_bytes", "last_rank", "transfer_ns", "matched_by"),
    *("present", "expected"),
)


@measure
def operations_drawn(run: Measures) -> pd.DataFrame:
    """One row per row of ``collectives``, with what is known of its operation.

    ``start_ns`` and ``end_ns`` are on the run's clock, of a rank that has none in common on its
    own; ``arrow_from`` is the row of the rank that it waited for, -1 if none.
    """
    found, interval = matched(run), intervals(run)
    called, of = run.rows("collectives"), operation_of(run)
    start, end = called.when()
    parts = (
        called.only(*_OWN),
        found.waits.all.only("operation", "wait_ns", "caused_wait_ns"),
        found.operations.only(*_OF_OPERATION).take(of),
        group_sizes(run).only("group_size").take(of),
    )
    each = pd.concat([part.frame() for part in parts], axis=1).assign(
        start_ns=_or(found.waits.ints("arrival_ns"), start),
        end_ns=_or(found.waits.ints("end_ns"), end),
        shared=np.bincount(interval)[interval] > 1,
    )
    communicator = found.operations.coded("communicator").take(of)
    each["dimension"] = dimensions_of(run, communicator).decoded()
    each["busbw_gb_s"], each["bound"] = _busbw(each)
    each["arrow_from"] = _arrows(each)
    return each


def draw_waited_for(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """A moment for each operation that others waited for the rank to reach.

    Drawn before all that arrows lead to: of two ends at one time the first in a file is the tail.
    """
    drawn = operations_drawn(run)
    waiters = drawn["arrow_from"].to_numpy()
    at = np.flatnonzero(waiters >= 0)
    at = at[drawn["rank"].to_numpy()[waiters[at]] == rank]
    if not at.size:
        return
    behind = pd.Series(at + 1).groupby(waiters[at]).agg(list)
    mine = drawn.iloc[behind.index].assign(arrows=behind.array)
    moments = [
        Slice(row["start_ns"], row["start_ns"], _name(row), _waited(row), leaves=row["arrows"])
        for row in rows(mine.sort_values("start_ns", kind="stable"))
    ]
    timeline.slices(timeline.track(f"{name} waited for", parent), moments)


def draw_operations(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """The rank's operations, a track for each group under its dimension."""
    drawn = operations_drawn(run)
    mine = drawn.iloc[places_of_rank(run, "collectives", rank)]
    if mine.empty:
        return
    places: dict[str | None, int] = {}
    keys = ["dimension", "communicator", _group(mine)]
    for key, its in mine.groupby(keys, dropna=False, observed=True):
        names: list[Any] = list(key)
        dimension, communicator, group = (None if pd.isna(name) else str(name) for name in names)
        if dimension not in places:
            above = f"operations of {dimension}" if dimension else "operations"
            places[dimension] = timeline.track(above, parent)
        label = " ".join(filter(None, (name, dimension)))
        its = its.sort_values(["start_ns", "end_ns"], kind="stable")
        families = list(_families(its))
        lanes = apart(integers(its["start_ns"]), integers(its["end_ns"]))
        track = f"{label}, {_members(communicator, group)}"
        draw(timeline, track, places[dimension], families, lanes)


def undrawn_arrows(run: Measures) -> int:
    """Operations in which a rank waited, and was done before the one that it waited for came."""
    drawn = operations_drawn(run)
    culprits = set(drawn.loc[drawn["caused_wait_ns"].fillna(0) > 0, "operation"])
    waits = (drawn["wait_ns"].fillna(0) > 0) & drawn["operation"].isin(culprits)
    return int((waits & (drawn["arrow_from"] < 0)).sum())


def _or(known: Int64, otherwise: Int64) -> Int64:
    return np.where(known == NULL, otherwise, known)


def _busbw(each: pd.DataFrame) -> tuple[pd.Series[Any], pd.Series[Any]]:
    """Bus bandwidth of each operation, and whether it is exact or a lower bound."""
    exact = each["exact"].astype(bool) & ~each["shared"]
    usable = exact | each["op"].isin(SYNCHRONISING)
    kinds = each[["op", "group_size"]].drop_duplicates().dropna()
    factors = {(op, size): bus_factor(op, int(size)) for op, size in kinds.itertuples(index=False)}
    pairs = zip(each["op"], each["group_size"], strict=True)
    factor = np.array([factors.get(pair) for pair in pairs], dtype=np.float64)
    time = each["transfer_ns"].astype("Float64").where(each["transfer_ns"] > 0)
    busbw = (each["size_bytes"].astype("Float64") / time * factor).where(usable)
    busbw = busbw.mask(busbw.isna() | np.isnan(factor))
    bound = pd.Series(np.where(exact, "exact", "lower"), each.index).where(busbw.notna())
    return busbw, bound


def _arrows(each: pd.DataFrame) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Of each row, the row of who was waited for, at whose arrival its wait ended."""
    guilty = np.flatnonzero((each["caused_wait_ns"].fillna(0) > 0).to_numpy())
    operation = each["operation"].to_numpy()
    culprit = pd.Series(guilty, operation[guilty])
    culprit = culprit[~culprit.index.duplicated()]
    of = culprit.reindex(operation).fillna(-1).to_numpy(np.int64)
    until = integers(each["start_ns"]) + integers(each["wait_ns"].fillna(0))
    met = until == integers(each["start_ns"])[of]
    waits = (each["wait_ns"].fillna(0) > 0).to_numpy()
    return np.where((of >= 0) & met & waits, of, -1)


def _families(mine: pd.DataFrame) -> Iterator[list[Slice]]:
    """Each operation as a slice; within it its waiting and its transfer, where they are known."""
    for at, row in zip(mine.index.tolist(), rows(mine), strict=True):
        start, end, wait = row["start_ns"], row["end_ns"], row["wait_ns"]
        whole = Slice(start, end, _name(row), {name: row[name] for name in _ARGUMENTS})
        number = row["operation"] + 1
        if wait is None:
            yield [whole._replace(operation=number)]
            continue
        whom = "" if row["last_rank"] is None else f" for rank {row['last_rank']}"
        waiting = [Slice(start, start + wait, f"wait{whom}")] if wait else []
        arrow = (at + 1,) if row["arrow_from"] >= 0 else ()
        transfer = Slice(start + wait, end, "transfer", operation=number, reaches=arrow)
        yield [whole, *waiting, transfer]


def _name(row: dict[str, Any]) -> str:
    return str(row["op"] or row["executed"] or "communication")


def _waited(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "caused_wait_ns": row["caused_wait_ns"],
        "waiting_ranks": len(row["arrows"]),
        "dimension": row["dimension"],
        "group": row["group"],
    }


def _group(mine: pd.DataFrame) -> pd.Series[Any]:
    """What tells groups of an unknown communicator from each other."""
    return mine["group"].astype(object).where(mine["communicator"].isna())


def _members(communicator: str | None, group: str | None) -> str:
    """A group as a track is named."""
    if communicator is None:
        return f"group {group}" if group else "unknown group"
    listed, _, name = communicator.partition("#")
    ranks = cut(numbered("rank", [int(rank) for rank in listed.split(",")]), 40) if listed else ""
    return f"{ranks} {name}".strip() if listed else f"group {name}"
