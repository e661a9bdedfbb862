"""Reductions of gradients that later micro-batches add to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, Int64
from commtrace.comms import DDP_FORWARD
from commtrace.intervals import inside, union

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["repeated_in_accumulation"]

_FSDP = "FSDP::root_pre_forward"
_FSDP_REDUCES = "FSDP::post_backward_reduce"
_OPTIMIZER = "Optimizer.step#"
_NO_RANGES = (DDP_FORWARD, "FSDP::", _OPTIMIZER)


def repeated_in_accumulation(run: Measures, rows: pd.DataFrame) -> pd.DataFrame:
    """Of the reductions in ``rows`` those that the last of their accumulation makes needless.

    One accumulation is the micro-batches of one step, and of one labelled range in it, with
    no optimizer's step between them; DDP and FSDP2 mark each by its forward pass. Needless is what
    a micro-batch reduces that is not the last, if the last reduces the same sizes. Groups
    that also reduce during a forward pass do not reduce gradients (tensor parallelism); what
    FSDP2 reduces it marks.
    """
    label = run.steps["label"]
    steps = run.steps.assign(
        end_ns=run.steps["start_ns"] + run.steps["duration_ns"],
        marks=_begins(label, _FSDP_REDUCES),
        updates=_begins(label, _OPTIMIZER),
        is_range=label.notna() & (label != "") & ~_begins(label, _NO_RANGES),
    )
    forward = steps[steps["label"].isin([DDP_FORWARD, _FSDP])]
    none = rows.iloc[:0].assign(micro_batches=0)
    if forward.empty:
        return none
    reduces = rows[rows["op"].isin(["all_reduce", "reduce_scatter"]) & rows["step"].notna()]
    placed = pd.concat(
        _placed(reduces[reduces["rank"] == rank], passes, steps[steps["rank"] == rank])
        for rank, passes in forward.groupby("rank")
    )
    parallel = placed["communicator"].isin(placed.loc[placed["in_forward"], "communicator"])
    # Behind the optimizer's step it is no gradient of that pass.
    placed = placed[~parallel & (placed["forward"] >= 0) & placed["before_update"]]
    whole = ["rank", "communicator", "step", "range", "updates"]
    last = placed["forward"] == placed.groupby(whole)["forward"].transform("max")
    if last.all():
        return none
    sizes = placed.groupby([*whole, "forward"])["size_bytes"].transform("sum")
    same = sizes == sizes.where(last).groupby([placed[name] for name in whole]).transform("max")
    count = placed.groupby(whole)["forward"].transform("nunique")
    return placed.assign(micro_batches=count)[same & ~last]


def _placed(rows: pd.DataFrame, forward: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """One rank's rows, each with the forward pass before it, its range and updates so far."""
    if (forward["label"] == _FSDP).any():
        marked = steps[steps["marks"]]
        rows = rows[inside(rows["order"], union(marked["start_ns"], marked["end_ns"] + 1))]
    else:
        rows = rows[rows["op"] == "all_reduce"]
    forward = forward.sort_values("start_ns")
    start, end = forward["start_ns"].to_numpy(), forward["end_ns"].to_numpy()
    moment = rows["order"].to_numpy(np.int64)
    near = np.searchsorted(start, moment, side="right") - 1
    updated = np.sort(steps.loc[steps["updates"], "start_ns"].to_numpy())
    updates = np.searchsorted(updated, moment)
    around = _innermost(start, steps[steps["is_range"]])
    return rows.assign(
        forward=near,
        range=around[near.clip(min=0)],
        updates=updates,
        before_update=updates == np.searchsorted(updated, start[near.clip(min=0)]),
        in_forward=(near >= 0) & (moment < end[near.clip(min=0)]),
    )


def _begins(label: pd.Series[Any], prefix: str | tuple[str, ...]) -> Bool:
    """Which labels begin like that; none is none."""
    begins = [name.startswith(prefix) for name in label.cat.categories]
    return np.asarray([*begins, False], dtype=np.bool_)[label.cat.codes]


def _innermost(moments: Int64, ranges: pd.DataFrame) -> Int64:
    """For each moment the range around it that began last, as a number; -1 for none."""
    found: Int64 = np.full(moments.size, -1, np.int64)
    ordered = ranges.sort_values("start_ns")
    for number, (start, end) in enumerate(zip(ordered["start_ns"], ordered["end_ns"], strict=True)):
        first, last = np.searchsorted(moments, [start, end])
        found[first:last] = number
    return found
