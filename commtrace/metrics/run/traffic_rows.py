"""The rows of ``collectives`` that tell what families of process groups are used for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import NULL, Bool, Float64, Int64, distinct, most, nth, rows_by
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.table import Coded, Column, Rows, Table
from commtrace.trace_tables import COLLECTIVES, TABLES

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["TRAFFIC", "traffic_rows"]

_ENOUGH = 4  # ranks of each family, the lowest: of a pipeline they are the first stage
_METRICS_BYTES = 1024  # groups without larger operations share losses and norms
_SMALL = 1 / 64  # of the group's largest operation: smaller ones are not what it is for
_KINDS = {
    **dict.fromkeys(POINT_TO_POINT, "messages"),
    "all_to_all": "all_to_all",
    "all_reduce": "reduce",
    "reduce_scatter": "reduce",
    "all_gather": "reduce",
}
_OWN = (
    *("step", "rank", "op", "size_bytes", "in_bytes", "out_bytes", "peer"),
    *("start_ns", "duration_ns"),
)
TRAFFIC = Table(
    "traffic_rows",
    "one row of `collectives` that tells the use of its group's family, by family, rank and start",
    (
        *COLLECTIVES.only(_OWN),
        Column("row", "int64", "Its row in `collectives`."),
        Column("family", "int64", "The family's number."),
        Column("kind", "category", "What it is used for: `messages`, `all_to_all` or `reduce`."),
        Column("end_ns", "int64", "When it was done, on the rank's own clock.", "ns"),
        Column(
            "position",
            "float64",
            "The share of its step's compute that began before a reduction; else null.",
        ),
        Column("behind", "bool", "Whether it is known to be launched behind the forward pass."),
    ),
)


def traffic_rows(run: Measures, family: Int64) -> Rows:
    """The rows that tell a family's use: TRAFFIC."""
    called = run.rows("collectives")
    op, rank, size = called.coded("op"), called.ints("rank"), called.ints("size_bytes")
    kinds = Coded.of([*(_KINDS.get(name) for name in op.names), None])
    kind = Coded(kinds.codes[op.codes], kinds.names)
    mine = np.flatnonzero((family >= 0) & kind.known & (size != NULL))
    largest = most(family[mine], size[mine], int(family.max(initial=-1)) + 1)[family[mine]]
    mine = mine[(largest > _METRICS_BYTES) & (size[mine] >= _SMALL * largest)]
    ranks = int(rank.max(initial=0)) + 1
    member = family * ranks + rank
    members = distinct(member[mine])
    some = members[nth(members // ranks) < _ENOUGH]
    mine = mine[np.isin(member[mine], some) | kind.being("messages")[mine]]
    start = called.ints("start_ns")
    mine = mine[np.lexsort((start[mine], rank[mine], family[mine]))]
    its = run.rows("collectives", mine)
    rows = TRAFFIC.rows(
        {
            **{name: its.columns[name] for name in _OWN},
            "row": mine,
            "family": family[mine],
            "kind": kind.take(mine),
            "end_ns": its.ints("start_ns") + its.ints("duration_ns"),
            "position": np.full(mine.size, np.nan),
            "behind": np.zeros(mine.size, np.bool_),
        }
    )
    if not rows.coded("kind").being("reduce").any():
        return rows
    more = {"position": _positions(run, rows), "behind": _behind(run, rows)}
    return TRAFFIC.rows({**rows.columns, **more})


def _behind(run: Measures, rows: Rows) -> Bool:
    """Whether each row is known to be launched behind the forward pass, of ranks that reduce."""
    ranks = distinct(rows.ints("rank")[rows.coded("kind").being("reduce")])
    mine = np.isin(run.rows("collectives").ints("rank"), ranks)
    place = np.where(mine, np.cumsum(mine) - 1, -1)
    phase = phases(run if mine.all() else _of_ranks(run, ranks))
    late = phase.where(("backward", "optimizer").__contains__)
    behind: Bool = np.append(late, False)[place[rows.ints("row")]]
    return behind


def _of_ranks(run: Measures, ranks: Int64) -> Measures:
    """What tells the phases of some ranks."""
    tables: dict[str, Any] = {table.name: table.rows() for table in TABLES}
    for name in ("collectives", "kernels", "ops", "steps"):
        mine = np.isin(run.rows(name).ints("rank"), ranks)
        tables[name] = run.rows(name, np.flatnonzero(mine))
    return replace(run, **tables)


def _positions(run: Measures, rows: Rows) -> Float64:
    """The share of its step's compute that began before each reduction; else NaN."""
    position = np.full(len(rows), np.nan)
    step, start_ns = rows.ints("step"), rows.ints("start_ns")
    wanted = np.flatnonzero(rows.coded("kind").being("reduce") & (step != NULL))
    for (rank,), its in rows_by(rows.ints("rank")[wanted]).items():
        at = wanted[its]
        position[at] = _began_before(run, rank, step[at], start_ns[at])
    return position


def _began_before(run: Measures, rank: int, of_step: Int64, at_ns: Int64) -> Float64:
    """The share of a step's compute that began on its rank before each moment; else NaN."""
    parts = [run.rows(name, places_of_rank(run, name, rank)) for name in ("kernels", "ops")]
    computes = np.concatenate([its.coded("kind").being("compute") for its in parts])
    start_ns, duration_ns, step = (
        np.concatenate([its.ints(name) for its in parts])
        for name in ("start_ns", "duration_ns", "step")
    )
    mine = np.flatnonzero(computes & (step != NULL))
    if not mine.size:
        return np.full(at_ns.size, np.nan)
    mine = mine[np.argsort(start_ns[mine], kind="stable")]
    done = np.concatenate(([0], np.cumsum(duration_ns[mine])))
    steps, number = np.unique(step[mine], return_inverse=True)
    end = most(number, done[1:], steps.size)
    begin = np.concatenate(([0], end[:-1]))
    place = np.searchsorted(steps, of_step).clip(max=steps.size - 1)
    whole = np.where(steps[place] == of_step, (end - begin)[place], 0)
    before = done[np.searchsorted(start_ns[mine], at_ns)] - begin[place]
    share: Float64 = np.where(whole > 0, before / np.maximum(whole, 1), np.nan)
    return share
