"""Pairs of operations that together do an all_reduce's work, and what one would cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from msgspec import Struct

from commtrace.arrays import NULL
from commtrace.comms import POINT_TO_POINT, members
from commtrace.expect import fit
from commtrace.measures import measure
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.used_between import used_between
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded, Column, Rows, Table, joined
from commtrace.trace_tables import COLLECTIVES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SEQUENCES", "Pair", "Reference", "pairs", "reference", "sequences"]

_SECOND = {"reduce": "broadcast", "reduce_scatter": "all_gather"}
_KIND = ["communicator", "op", "dtype", "size_bytes"]
_OWN = (
    *("step", "rank", "op", "executed", "dtype", "size_bytes", "in_bytes", "out_bytes"),
    *("group_size", "device", "stream", "root", "launch_ns", "start_ns", "duration_ns"),
)
# One that the window cut off, or whose shards something happened to follow, spoils no claim.
_ALWAYS = 0.9
_MAX_RESIDUAL = 0.25
# Far from the tensor's size another protocol or algorithm may have run.
_NEAR = 16

SEQUENCES = Table(
    "sequences",
    "one row of `collectives` with a group and a size (or a barrier), in the order of the calls "
    "of each rank and communicator",
    (
        *COLLECTIVES.only(_OWN),
        Column("operation", "int64", "The operation's number: equal on all its ranks."),
        Column("communicator", "category", "The process group's identity across ranks."),
        Column("order", "Int64", "When it was called; when it began, if that is unknown.", "ns"),
        Column("end_ns", "int64", "When it was done, on the rank's own clock.", "ns"),
        Column("sequence", "int64", "A number for each rank and communicator."),
        Column("edge", "bool", "Whether it is the first or last of its sequence."),
    ),
)


PAIR_TIMES = Table(
    "pair_times",
    "one instance of a pair of operations, in the order of their starts",
    (
        Column("operation", "int64", "The first's number."),
        Column("operation_second", "int64", "The second's."),
        Column("start", "int64", "When the first started on any rank.", "ns"),
        Column("end", "int64", "When the second ended on all.", "ns"),
        Column(
            "time",
            "int64",
            "From the first's last arrival (of synchronous calls on the CPU from the last call, "
            "since gloo copies the input before it starts) to the second's last end.",
            "ns",
        ),
        Column("first", "int64", "The first's transfer, from there on.", "ns"),
        Column("gap", "int64", "From the first's end to the second's start, where shortest.", "ns"),
        Column("second", "int64", "The second's transfer.", "ns"),
    ),
)


class Pair(Struct, frozen=True):
    """All instances of one pair in one group at one size, as often as each other.

    ``tensor_bytes`` is what an all_reduce (or reduce + broadcast) beside it reduces: the
    pair's own size, or an n-th of it; None where nothing beside it shows it. ``times`` are
    PAIR_TIMES.
    """

    first: str
    second: str
    executed: str
    communicator: str
    dtype: str
    group_size: int
    size_bytes: int
    tensor_bytes: int | None
    streams: tuple[int, ...]
    times: Rows

    @property
    def inflation(self) -> float:
        """Bytes moved, by those that the result needs."""
        return self.size_bytes / (self.tensor_bytes or self.size_bytes)


class Reference(Struct, frozen=True):
    """The time of one all_reduce of the tensor, and how it is known.

    ``how`` is ``measured`` in this trace, ``fitted`` to its all_reduces of other sizes, or
    ``expected`` from the pair itself, as a ring relates the two. ``upper_ns`` is the upper
    quartile, or the model's residual above. ``tree`` says that its kernel's name shows one.
    ``times`` are those measured, in ns and in order.
    """

    time_ns: float
    upper_ns: float
    how: str
    count: int
    tree: bool = False
    times: tuple[float, ...] = ()


@measure
def pairs(run: Measures) -> tuple[Pair, ...]:
    """Every decomposition of an all_reduce whose parts nothing uses in between.

    Sought once per trace, whichever rule asks.
    """
    return tuple(_pairs(run))


def _pairs(run: Measures) -> Iterator[Pair]:
    if not run.rows("collectives").coded("op").where(_SECOND.__contains__).any():
        return
    each = sequences(run)
    names = dict.fromkeys(("op", "dtype", "executed", "communicator"), object)
    rows = each.frame().astype(names)  # TRANSITION
    at = np.flatnonzero(rows["op"].isin([*_SECOND]).to_numpy()[:-1])
    first, second = (rows.iloc[its].reset_index(drop=True) for its in (at, at + 1))
    follows = (
        (first["sequence"] == second["sequence"])
        & (first["op"].map(_SECOND) == second["op"])
        & (first["size_bytes"] == second["size_bytes"])
        & (first["dtype"] == second["dtype"])
        & ((first["root"] == second["root"]) | first["root"].isna() | second["root"].isna())
    ).to_numpy(dtype=np.bool_, na_value=False)
    at = at[follows]
    if not at.size:
        return
    both = first[follows].reset_index(drop=True)
    later = second[follows].reset_index(drop=True).add_suffix("_second")
    both = pd.concat([both, later], axis=1)
    free = at[~used_between(run, each, at, at + 1)]
    rows["paired"] = np.isin(np.arange(len(rows)), np.concatenate([free, free + 1]))
    both = both[np.isin(at, free)]
    yield from _found(run, rows, both)


def sequences(run: Measures, *, barriers: bool = False) -> Rows:
    """Every rank's operations in each group, in the order it called them: SEQUENCES.

    Barriers only if those are asked for.
    """
    table, found = run.rows("collectives"), matched(run).matches
    communicator, op = found.coded("communicator"), table.coded("op")
    named = np.argsort(np.argsort(np.asarray(communicator.names, np.str_)))  # by their names
    group = np.append(named, -1)[communicator.codes]
    rank, start, launch = (table.ints(name) for name in ("rank", "start_ns", "launch_ns"))
    called = np.where(launch == NULL, start, launch)
    sized = (table.ints("size_bytes") != NULL) & ~op.where(POINT_TO_POINT.__contains__)
    mine = np.flatnonzero((group >= 0) & (sized | (barriers & op.being("barrier"))))
    mine = mine[np.lexsort((start[mine], called[mine], group[mine], rank[mine]))]
    first = np.diff(rank[mine], prepend=-1) | np.diff(group[mine], prepend=-1)
    begins = np.append(first != 0, True)
    own = run.rows("collectives", mine)
    return SEQUENCES.rows(
        {
            **{name: own.columns[name] for name in _OWN},
            "executed": _or_else(own.coded("executed"), own.coded("op")),
            "operation": found.ints("operation")[mine],
            "communicator": communicator.take(mine),
            "order": called[mine],
            "end_ns": own.ints("start_ns") + own.ints("duration_ns"),
            "sequence": np.cumsum(begins[:-1]) - 1,
            "edge": begins[:-1] | begins[1:],
        }
    )


def _or_else(first: Coded, second: Coded) -> Coded:
    """Names, and others where they are null."""
    both = joined([first, second])
    codes, others = both.codes[: len(first)], both.codes[len(first) :]
    return Coded(np.where(codes < 0, others, codes), both.names)


def _found(run: Measures, rows: pd.DataFrame, both: pd.DataFrame) -> Iterator[Pair]:
    # At the edge of what was recorded the other half may be missing.
    always = rows[rows["paired"] | ~rows["edge"]].groupby(_KIND)["paired"].mean() >= _ALWAYS
    sure: list[tuple[Any, pd.DataFrame]] = []
    for kind, instances in both.groupby(_KIND):
        communicator, op, dtype, size = cast("tuple[str, str, str, int]", kind)
        halves = [(communicator, half, dtype, size) for half in (op, _SECOND[op])]
        if always.loc[halves].all():
            sure.append((halves[0], instances))
    for (communicator, op, dtype, size), instances in sure:
        count = _group_size(instances)
        if count is None or count < 2 or not size:
            continue
        yield Pair(
            first=op,
            second=_SECOND[op],
            executed=str(instances["executed"].iloc[0]),
            communicator=communicator,
            dtype=dtype,
            group_size=count,
            size_bytes=int(size),
            tensor_bytes=_tensor_bytes(rows, instances, sure),
            streams=tuple(sorted({*instances["stream"], *instances["stream_second"]})),
            times=_times(run, instances),
        )


def _group_size(instances: pd.DataFrame) -> int | None:
    """As recorded, else as the communicator lists its ranks, else as the sizes have it."""
    row = instances.iloc[0]
    if pd.notna(row["group_size"]):
        return int(row["group_size"])
    if listed := members(row["communicator"]):
        return len(listed)
    if row["op"] == "reduce_scatter" and pd.notna(row["in_bytes"]) and row["out_bytes"] > 0:
        return int(row["in_bytes"] // row["out_bytes"])
    return None


def _tensor_bytes(rows: pd.DataFrame, instances: pd.DataFrame, sure: list[Any]) -> int | None:
    """The tensor's size as what is beside tells it, in the same group and type."""
    row = instances.iloc[0]
    if row["op"] == "reduce":
        return int(row["size_bytes"])
    alike = (rows["communicator"] == row["communicator"]) & (rows["dtype"] == row["dtype"])
    whole = rows[alike & (rows["op"] == "all_reduce")].groupby("size_bytes").size().to_dict()
    for (communicator, op, dtype, size), others in sure:
        if (communicator, op, dtype) == (row["communicator"], "reduce", row["dtype"]):
            whole[size] = whole.get(size, 0) + len(others)
    if row["size_bytes"] in whole:
        return int(row["size_bytes"])
    part = row["out_bytes"]
    # A size met now and then says nothing of a pair that runs in every step.
    beside = pd.notna(part) and 2 * whole.get(part, 0) >= len(instances)
    return int(part) if beside else None


def _times(run: Measures, instances: pd.DataFrame) -> Rows:
    gap = (instances["start_ns_second"] - instances["end_ns"]).clip(lower=0)
    each = instances.assign(gap=gap).groupby(["operation", "operation_second"])
    one = each.agg(gap=("gap", "min"), start=("start_ns", "min"), end=("end_ns_second", "max"))
    first = called(run).loc[one.index.get_level_values(0)]
    second = matched(run).operations.set_index("operation").loc[one.index.get_level_values(1)]
    whole = second["last_end_ns"].to_numpy() - first["last_arrival_ns"].to_numpy()
    one["first"], one["second"] = (
        half["transfer_ns"].to_numpy(np.int64) for half in (first, second)
    )
    # Without a common clock the parts are all there is.
    parts = one["first"] + one["gap"] + one["second"]
    one["time"] = parts.where(pd.isna(whole), np.maximum(parts, pd.array(whole).fillna(0)))
    its = one.reset_index().astype(np.int64).sort_values("start", ignore_index=True)
    return PAIR_TIMES.rows({c.name: its[c.name].to_numpy() for c in PAIR_TIMES.columns})


def reference(run: Measures, pair: Pair) -> Reference:
    """What one all_reduce of the tensor costs: measured, else fitted, else expected."""
    found = called(run).reset_index()
    alike = found[
        (found["op"] == "all_reduce")
        & (found["communicator"] == pair.communicator)
        & (found["dtype"] == pair.dtype)
        & (found["size_bytes"] > 0)
    ]
    tensor = pair.tensor_bytes or pair.size_bytes
    same = alike[alike["size_bytes"] == tensor]
    if len(same):
        half, upper = (float(same["transfer_ns"].quantile(q)) for q in (0.5, 0.75))
        times = tuple(same.sort_values("first_arrival_ns")["transfer_ns"].astype("float64"))
        return Reference(half, upper, "measured", len(same), _tree(run, same), times)
    near = alike[(alike["size_bytes"] >= tensor / _NEAR) & (alike["size_bytes"] <= tensor * _NEAR)]
    model = fit(near["size_bytes"], near["transfer_ns"].astype(np.float64))
    if model and model.residual <= _MAX_RESIDUAL:
        time = model.time_ns(tensor)
        return Reference(time, time * (1 + model.residual), "fitted", model.points)
    expected = _expected_ns(pair)
    return Reference(expected, expected, "expected", len(pair.times))


def _expected_ns(pair: Pair) -> float:
    """By a ring's steps; where the first half ran as an all_reduce, that is one."""
    first, second = (float(pair.times[half].median()) for half in ("first", "second"))
    if pair.executed == "all_reduce":
        whole = first
    elif pair.first == "reduce":
        whole = (first + second) * (pair.group_size - 1) / pair.group_size
    else:
        whole = first + second
    return whole / pair.inflation


def _tree(run: Measures, operations: pd.DataFrame) -> bool:
    ran = np.isin(matched(run).matches["operation"].to_numpy(), operations["operation"])
    names = run.collective_columns["name"].astype(object).to_numpy()[ran]
    return any("TREE" in str(name) for name in set(names))
