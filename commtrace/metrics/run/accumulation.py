"""Reductions of gradients that later micro-batches add to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, codes, first_rows, integers, sums
from commtrace.comms import DDP_FORWARD
from commtrace.intervals import inside, union
from commtrace.packed import columns_in
from commtrace.table import Coded

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["repeated_in_accumulation"]

_FSDP = "FSDP::root_pre_forward"
_FSDP_REDUCES = "FSDP::post_backward_reduce"
_OPTIMIZER = "Optimizer.step#"
_REDUCTIONS = ("all_reduce", "reduce_scatter")
_NO_RANGES = (DDP_FORWARD, "FSDP::", _OPTIMIZER)


def repeated_in_accumulation(run: Measures, rows: pd.DataFrame) -> pd.DataFrame:
    """Of the reductions in ``rows`` those that the last of their accumulation makes needless.

    One accumulation is the micro-batches of one step, and of one labelled range in it, with
    no optimizer's step between them; DDP and FSDP2 mark each by its forward pass. Needless is what
    a micro-batch reduces that is not the last, if the last reduces the same sizes. Groups
    that also reduce during a forward pass do not reduce gradients (tensor parallelism); what
    FSDP2 reduces it marks.
    """
    steps: Any = columns_in(run.steps)
    none = rows.iloc[:0].assign(micro_batches=0)
    is_forward = steps["label"].where((DDP_FORWARD, _FSDP).__contains__)
    reduces = (rows["op"].isin(_REDUCTIONS) & rows["step"].notna()).to_numpy()
    if not is_forward.any() or not reduces.any():
        return none
    rank = integers(rows["rank"])
    parts = [
        _placed(rows, np.flatnonzero(reduces & (rank == one)), _of_rank(steps, one))
        for one in np.unique(steps["rank"][is_forward]).tolist()
    ]
    placed = _joined(parts)
    group = codes(rows["communicator"])[placed.row]
    parallel = np.isin(group, group[placed.in_forward])
    # Behind the optimizer's step it is no gradient of that pass.
    mine = ~parallel & (placed.forward >= 0) & placed.before_update
    row, forward, group = placed.row[mine], placed.forward[mine], group[mine]
    step, labelled, updates = integers(rows["step"])[row], placed.range[mine], placed.updates[mine]
    whole = codes(rank[row], group, step, labelled, updates)
    latest = np.full(whole.max(initial=-1) + 1, -1)
    np.maximum.at(latest, whole, forward)
    last = forward == latest[whole]
    if last.all():
        return none
    batch = codes(whole, forward)
    size = sums(batch, integers(rows["size_bytes"])[row], int(batch.max()) + 1)[batch]
    of_last = np.zeros(latest.size, dtype=np.int64)
    np.maximum.at(of_last, whole[last], size[last])
    needless = ~last & (size == of_last[whole])
    count = np.bincount(whole[first_rows(batch)])
    found: pd.DataFrame = rows.iloc[row[needless]].assign(micro_batches=count[whole[needless]])
    return found


class _Placed(NamedTuple):
    """Reductions, each with the forward pass before it, its range and its rank's updates so far."""

    row: Int64
    forward: Int64
    range: Int64
    updates: Int64
    before_update: Bool
    in_forward: Bool


def _joined(parts: list[_Placed]) -> _Placed:
    columns: Any = (np.concatenate(its) for its in zip(*parts, strict=True))
    return _Placed(*columns)


class _Steps(NamedTuple):
    """The steps and labelled ranges of one rank."""

    label: Coded
    start_ns: Int64
    end_ns: Int64

    def of(self, mine: Bool) -> tuple[Int64, Int64]:
        """When some of them began and ended, by their start."""
        rows = np.flatnonzero(mine)
        rows = rows[np.argsort(self.start_ns[rows], kind="stable")]
        return self.start_ns[rows], self.end_ns[rows]


def _of_rank(steps: Any, rank: int) -> _Steps:
    mine = np.flatnonzero(steps["rank"] == rank)
    start_ns = steps["start_ns"][mine]
    label = Coded(steps["label"].codes[mine], steps["label"].names)
    return _Steps(label, start_ns, start_ns + steps["duration_ns"][mine])


def _placed(rows: pd.DataFrame, mine: Int64, steps: _Steps) -> _Placed:
    """One rank's reductions."""
    label = steps.label
    moment = integers(rows["order"])[mine]
    if label.being(_FSDP).any():
        start, end = steps.of(label.where(lambda name: name.startswith(_FSDP_REDUCES)))
        own = inside(moment, union(start, end + 1))
    else:
        own = (rows["op"] == "all_reduce").to_numpy()[mine]
    mine, moment = mine[own], moment[own]
    start, end = steps.of(label.where((DDP_FORWARD, _FSDP).__contains__))
    near = np.searchsorted(start, moment, side="right") - 1
    updated, _ = steps.of(label.where(lambda name: name.startswith(_OPTIMIZER)))
    updates = np.searchsorted(updated, moment)
    ranges = steps.of(label.where(lambda name: name != "" and not name.startswith(_NO_RANGES)))
    around, at = _innermost(start, *ranges), near.clip(min=0)
    return _Placed(
        mine,
        near,
        around[at],
        updates,
        updates == np.searchsorted(updated, start[at]),
        (near >= 0) & (moment < end[at]),
    )


def _innermost(moments: Int64, start: Int64, end: Int64) -> Int64:
    """For each moment the range around it that began last, as a number; -1 for none."""
    found: Int64 = np.full(moments.size, -1, np.int64)
    bounds = np.searchsorted(moments, start), np.searchsorted(moments, end)
    for number, (first, last) in enumerate(zip(*(its.tolist() for its in bounds), strict=True)):
        found[first:last] = number
    return found
