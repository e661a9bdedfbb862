"""all_gathers whose parts are summed at once: what an all_reduce does with fewer bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, Int64, integers
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.run.calls import called
from commtrace.metrics.run.used_between import MOVES
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["summed_gathers"]

_JOINS = ("aten::stack", "aten::cat")
_SUMS = ("aten::sum", "aten::mean")
_ADDS = ("aten::add", "aten::add_")
_MOVES = (*(f"aten::{name}" for name in MOVES), "aten::split", "aten::unbind", "aten::zeros")
_ALWAYS = 0.8  # of the operations of one size


@measure
def summed_gathers(run: Measures) -> Rows:
    """The all_gathers on CPUs of whose parts the next thing that is made is their sum.

    The rows of ``called``, which have their number in ``operation``, of those groups, types and
    sizes of which nearly all are: the first rank of each tells it, by what runs behind its call.
    """
    table = run.collective_columns
    mine = (table["op"] == "all_gather") & (table["device"] == "cpu") & table["launch_ns"].notna()
    at = np.flatnonzero(mine)
    if not at.size:
        return called(run).take(slice(0))
    rows = table[["rank", "thread", "launch_ns"]].iloc[at]
    operation = matched(run).matches["operation"].to_numpy()[at]
    rows = rows.assign(operation=operation).drop_duplicates("operation")
    ranks = rows["rank"].unique().tolist()
    found = [_summed(run, rank, rows[rows["rank"] == rank]) for rank in ranks]
    known = called(run).frame().merge(pd.concat(found), on="operation")
    kind = ["communicator", "dtype", "size_bytes"]
    always = known.groupby(kind, observed=True)["summed"].transform("mean") >= _ALWAYS
    its = called(run)
    return its.take(np.isin(its.ints("operation"), known["operation"][always]))


def _summed(run: Measures, rank: int, calls: pd.DataFrame) -> pd.DataFrame:
    """Whether the parts of each of a rank's all_gathers are summed: ``operation``, ``summed``."""
    ops = rows_of_rank(run, "ops", rank)
    ops = ops[(ops["kind"] == "compute") & ~ops["name"].isin(_MOVES)]
    every = rows_of_rank(run, "collectives", rank)
    summed = np.zeros(len(calls), np.bool_)
    for thread in calls["thread"].dropna().unique().tolist():
        own = ops[ops["thread"] == thread].sort_values("start_ns", kind="stable")
        launches = np.sort(integers(every.loc[every["thread"] == thread, "launch_ns"]))
        at = np.flatnonzero((calls["thread"] == thread).to_numpy(np.bool_, na_value=False))
        summed[at] = _behind(own, integers(calls["launch_ns"])[at], launches)
    return pd.DataFrame({"operation": calls["operation"].to_numpy(), "summed": summed})


def _behind(ops: pd.DataFrame, launch_ns: Int64, launches: Int64) -> Bool:
    """Whether the first operators behind each call, before the next one, make a sum."""
    never = np.iinfo(np.int64).max
    names = np.append(ops["name"].astype(object).to_numpy(), ["", ""])
    starts = np.append(integers(ops["start_ns"]), [never, never])
    first = np.searchsorted(starts[:-2], launch_ns, side="right")
    following = np.append(launches, never)[np.searchsorted(launches, launch_ns, side="right")]
    one, two = (np.where(starts[at] < following, names[at], "") for at in (first, first + 1))
    joined = np.isin(one, _JOINS) & np.isin(two, _SUMS)
    added = np.isin(one, _ADDS) & np.isin(two, _ADDS)
    return np.isin(one, _SUMS) | joined | added
