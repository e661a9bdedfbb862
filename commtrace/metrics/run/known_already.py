"""What every rank has already: parameters, gradients that DDP averaged, what never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, Int64
from commtrace.comms import DDP_FORWARD, POINT_TO_POINT, members
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.run.arrivals import TO_ROOT
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["averaged_again", "sent_again", "sent_always"]

_STEP = ["rank", "communicator", "dtype", "step"]
_ALWAYS = 0.9  # of the steps: the window may cut one
_BESIDE = 0.01  # of the gradients' bytes: a loss that is averaged beside them
_PARTS = 3  # sizes: a batch, that one rank reads for all, has fewer
_ALONE = 2.0  # times as long as the others: the root has something to send that they have not
_ALONE_IN_ALL = 1.2  # if that holds all that they do between two operations


def sent_again(rows: pd.DataFrame) -> Bool:
    """Which rows of ``sequences`` are broadcasts of one root, of all bytes that were all_reduced.

    In the same step, and behind it, in a group in which the root does between the two what the
    others do, and that reduces nothing to it.
    """
    is_sent, is_summed = (rows["op"] == "broadcast").to_numpy(), (rows["op"] == "all_reduce")
    to_root = set(rows.loc[rows["op"] == "reduce", "communicator"])
    known = rows["step"].notna().to_numpy() & (is_sent | is_summed.to_numpy())
    known &= ~rows["communicator"].isin(to_root).to_numpy()
    if not (is_sent & known).any() or not is_summed.any():
        return np.zeros(len(rows), dtype=np.bool_)
    size = rows["size_bytes"].astype("float64")
    begins = rows["order"].astype("float64")
    by = rows[_STEP].assign(
        sent=size.where(is_sent, 0.0),
        summed=size.where(is_summed, 0.0),
        root=rows["root"].astype("float64").where(is_sent),
        first=begins.where(is_sent),
        last=rows["end_ns"].astype("float64").where(is_summed),
    )[known]
    steps = by.groupby(_STEP, observed=True).agg(
        sent=("sent", "sum"),
        summed=("summed", "sum"),
        roots=("root", "nunique"),
        root=("root", "first"),
        first=("first", "min"),
        last=("last", "max"),
    )
    steps = steps[steps["sent"] > 0]
    alike = (steps["sent"] <= steps["summed"]) & (steps["summed"] <= (1 + _BESIDE) * steps["sent"])
    steps = steps.assign(alike=alike & (steps["roots"] == 1), own=steps["first"] - steps["last"])
    found: Bool = is_sent & known & _of_sure(rows, steps, _ALONE)
    return found


def sent_always(run: Measures, rows: pd.DataFrame) -> Bool:
    """Which rows of ``sequences`` are broadcasts of one root in each step, of the same sizes.

    Of several, as a model's parameters have them, in a group that averages what it learns, and
    whose root gets nothing that the others do not get, nor does more before it sends.
    """
    is_sent = (rows["op"] == "broadcast").to_numpy() & rows["step"].notna().to_numpy()
    is_sent[is_sent] = rows["dtype"][is_sent].str.contains("float").eq(True).to_numpy()
    found = np.zeros(len(rows), dtype=np.bool_)
    if not is_sent.any() or run.collective_columns["op"].isin([*TO_ROOT, *POINT_TO_POINT]).any():
        return found
    summed = set(rows.loc[rows["op"] == "all_reduce", "communicator"])
    ends = rows["end_ns"].astype("float64").groupby(rows["rank"]).cummax()
    before = ends.groupby(rows["rank"]).shift()
    sent = rows[is_sent & rows["communicator"].isin(summed).to_numpy()]
    by = sent.assign(own=sent["order"].astype("float64") - before[sent.index])
    by = by.assign(size=by["size_bytes"].astype("float64"), root=by["root"].astype("float64"))
    steps = by.groupby(_STEP, observed=True).agg(
        sent=("size", "sum"),
        sizes=("size", "nunique"),
        roots=("root", "nunique"),
        root=("root", "first"),
        own=("own", "first"),
    )
    usual = steps.groupby(["communicator", "dtype"], observed=True)["sent"].transform("median")
    many = (steps["sizes"] >= _PARTS) & (steps["roots"] == 1)
    steps = steps.assign(alike=many & (steps["sent"] == usual))
    found[by.index[_of_sure(by, steps, _ALONE_IN_ALL)]] = True
    return found


def _of_sure(rows: pd.DataFrame, steps: pd.DataFrame, alone: float) -> Bool:
    """Which rows are of groups and types whose steps send them for nothing."""
    groups = steps.groupby(["communicator", "dtype"], observed=True)
    sure = {group for group, its in groups if _for_nothing(its, str(its.index[0][1]), alone)}
    return np.asarray(pd.MultiIndex.from_frame(rows[["communicator", "dtype"]]).isin(sure))


def _for_nothing(steps: pd.DataFrame, communicator: str, alone: float) -> bool:
    """Whether (nearly) each step sends what is alike, and its root did nothing else for it."""
    if steps["alike"].mean() < _ALWAYS:
        return False
    ranks = members(communicator)
    root = int(steps["root"].median())
    if not 0 <= root < len(ranks):
        return False
    roots = steps.index.get_level_values("rank").to_numpy() == ranks[root]
    own, others = steps["own"][roots].median(), steps["own"][~roots].median()
    return bool(own <= alone * max(others, 0))


def averaged_again(run: Measures, rows: pd.DataFrame) -> Bool:
    """Which rows of ``sequences`` are all_reduces behind DDP's own, of as many bytes as these.

    Between (nearly) all forward passes of a group, where each step has one. What runs in backward
    is DDP's own: two of its buckets can be as large as each other.
    """
    passes = run.steps[run.steps["label"] == DDP_FORWARD]
    found = np.zeros(len(rows), dtype=np.bool_)
    if passes.empty:
        return found
    count = passes.groupby(["rank", "step"]).size()
    once = pd.MultiIndex.from_frame(rows[["rank", "step"]]).isin(count.index[count == 1])
    summed = rows[once & (rows["op"] == "all_reduce").to_numpy()]
    summed = summed.assign(forward=_forward(summed, passes))
    summed = summed[summed["forward"] >= 0].sort_values(["rank", "order"], kind="stable")
    if summed.empty:
        return found
    size = summed["size_bytes"].astype("float64")
    each = [summed[name] for name in ("rank", "communicator", "dtype", "forward")]
    so_far, whole = (size.groupby(each, observed=True).transform(how) for how in ("cumsum", "sum"))
    ends_half = (2 * so_far == whole).groupby(each, observed=True).transform("any")
    group = [summed[name] for name in ("communicator", "dtype")]
    last = summed.groupby("rank")["forward"].transform("max")
    cut = ~ends_half & (last > 0) & (summed["forward"] == last)  # where the window ends
    whole_ones = ends_half.astype("float64").mask(cut)
    always = whole_ones.groupby(group, observed=True).transform("mean") >= _ALWAYS
    again = summed[ends_half & always & (2 * so_far > whole)]
    if not again.empty:
        again = again[~again["operation"].isin(_in_backward(run))]
    found[again.index] = True
    return found


def _in_backward(run: Measures) -> Int64:
    """The operations that some rank calls in a backward pass, as far as that is known."""
    rows = [phase == "backward" for phase in phases(run)]
    return matched(run).matches["operation"].to_numpy()[rows]


def _forward(rows: pd.DataFrame, passes: pd.DataFrame) -> Int64:
    """The number of its rank's forward pass before each row, -1 before the first."""
    number: Int64 = np.full(len(rows), -1)
    rank, order = rows["rank"].to_numpy(), rows["order"].to_numpy(np.int64)
    for one, its in passes.groupby("rank")["start_ns"]:
        mine = rank == one
        number[mine] = np.searchsorted(np.sort(its.to_numpy()), order[mine], side="right") - 1
    return number
