"""What every rank has already: parameters of the same gradients, gradients that DDP averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from commtrace.arrays import Bool
from commtrace.comms import DDP_FORWARD, members

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["averaged_again", "sent_again"]

_STEP = ["rank", "communicator", "dtype", "step"]
_ALWAYS = 0.9  # of the steps: the window may cut one
_BESIDE = 0.01  # of the gradients' bytes: a loss that is averaged beside them
_ALONE = 2.0  # times as long as the others: the root has something to send that they have not


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
    groups = steps.groupby(["communicator", "dtype"], observed=True)
    sure = {group for group, its in groups if _for_nothing(its, str(its.index[0][1]))}
    mine = pd.MultiIndex.from_frame(rows[["communicator", "dtype"]]).isin(sure)
    found: Bool = is_sent & known & np.asarray(mine, dtype=np.bool_)
    return found


def _for_nothing(steps: pd.DataFrame, communicator: str) -> bool:
    """Whether (nearly) each step sends what was summed, and its root did nothing else for it."""
    if steps["alike"].mean() < _ALWAYS:
        return False
    ranks = members(communicator)
    root = int(steps["root"].median())
    if not 0 <= root < len(ranks):
        return False
    roots = steps.index.get_level_values("rank").to_numpy() == ranks[root]
    own, others = steps["own"][roots].median(), steps["own"][~roots].median()
    return bool(own <= _ALONE * max(others, 0))


def averaged_again(run: Measures, rows: pd.DataFrame) -> Bool:
    """Which rows of ``sequences`` are all_reduces behind DDP's own, of as many bytes as these.

    In (nearly) each step of a group, of one forward pass each.
    """
    forward = run.steps[run.steps["label"] == DDP_FORWARD].groupby(["rank", "step"]).size()
    once = pd.MultiIndex.from_frame(rows[["rank", "step"]]).isin(forward.index[forward == 1])
    summed = rows[once & (rows["op"] == "all_reduce").to_numpy()]
    found = np.zeros(len(rows), dtype=np.bool_)
    if summed.empty:
        return found
    summed = summed.sort_values([*_STEP, "order"], kind="stable")
    size = summed["size_bytes"].astype("float64")
    each = [summed[name] for name in _STEP]
    so_far, whole = (size.groupby(each, observed=True).transform(how) for how in ("cumsum", "sum"))
    ends_half = (2 * so_far == whole).groupby(each, observed=True).transform("any")
    group = [summed[name] for name in ("communicator", "dtype")]
    always = ends_half.groupby(group, observed=True).transform("mean") >= _ALWAYS
    again = summed.index[ends_half & always & (2 * so_far > whole)]
    found[again] = True
    return found
