"""What rules say of ranks that delay the others: the same measurements, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from commtrace.causal.culprits import Culprit, culprits
from commtrace.causal.run_graph import run_graph
from commtrace.diagnosis import Cause, Evidence, Finding
from commtrace.metrics.run.group_dimensions import dimension_of
from commtrace.metrics.run.whole import of_time, share_pct
from commtrace.units import counted, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.rules._rule import Rule

__all__ = ["awaited", "delays"]

_ADVICE: dict[Cause, str] = {
    "loader": "speed up data loading: more workers (num_workers), prefetching, pinned memory, or "
    "faster storage",
    "checkpoint": "save checkpoints asynchronously, or sharded over all ranks "
    "(torch.distributed.checkpoint), and less often",
    "garbage-collection": "call gc.freeze() after setting up and gc.disable(), then gc.collect() "
    "on all ranks in the same steps",
    "compute": "split the work evenly (batch, sequence lengths, layers); if it is even, look at "
    "clock rates and at what else runs there",
    "copy": "prefetch, and copy from pinned memory",
    "host": "look at data loading, logging, file systems and other processes there",
}
_DOES: dict[Cause, str] = {
    "loader": "in its data loader",
    "checkpoint": "saving a checkpoint",
    "garbage-collection": "collecting garbage",
    "compute": "computing",
    "copy": "copying",
    "host": "running no operator",
}


def awaited(run: Measures, min_step_share: float, kind: str) -> Iterator[Culprit]:
    """The culprits for whom others wait mostly in operations of this kind (see AWAITED)."""
    for culprit in culprits(run, min_step_share).found:
        if culprit.waits.call.size and culprit.waits.mostly == kind:
            yield culprit


def delays(rule: Rule, culprit: Culprit, run: Measures, who: str, min_step_share: float) -> Finding:
    """A finding of that rule about a culprit; ``who`` names it."""
    waits = culprit.waits
    count, each = culprit.steps_ns.size, culprit.steps_ns
    place = _place(run, culprit)
    spikes = len(culprit.spikes)
    mean = ms(float((each if culprit.persistent else each[list(culprit.spikes)]).mean()))
    stall, delay = ("stall", "delay") if len(culprit.ranks) > 1 else ("stalls", "delays")
    how = (
        f"{stall} for {mean} in {spikes} of {counted(count, 'step')}"
        if not culprit.persistent
        else f"{delay} every step by {mean}"
    )
    does = f", {_DOES[culprit.cause]}" if culprit.cause else ""
    unsure = f" (not sure: {culprit.doubt})" if culprit.doubt else ""
    return rule.finding(
        (waits.start_ns, np.maximum(waits.end_ns, waits.start_ns + 1)),
        summary=f"{who} {how}{does} {place}{unsure}",
        ranks=culprit.ranks,
        streams=(),
        cost_ns=max(culprit.saved_ns, 0),
        cost_on_top_ns=max(culprit.on_top_ns, 0),
        replayed_step_ns=culprit.replayed_step_ns,
        place=place,
        cause=culprit.cause,
        evidence=tuple(_evidence(culprit, run, min_step_share)),
        ruled_out=tuple(_ruled_out(culprit)),
        advice=f"{numbered('rank', culprit.ranks)}: "
        + (
            _ADVICE[culprit.cause]
            if culprit.cause
            else "no single cause: look at what it does there"
        ),
        confidence=_confidence(culprit),
    )


def _evidence(culprit: Culprit, run: Measures, min_step_share: float) -> Iterator[Evidence]:
    median = float(np.median(culprit.steps_ns))
    yield Evidence("saved per step if typical, median", median, "ns", 2 * culprit.noise_ns)
    yield Evidence(
        "chance that it is not in every step, corrected", culprit.p_value, "probability", 0.01
    )
    yield Evidence("most that any other rank saves", culprit.others_ns, "ns")
    share = share_pct(culprit.on_top_ns, run)
    yield Evidence(f"share {of_time(run)}", share, "%", 100 * min_step_share)
    for cause, time in culprit.parts_ns.items():
        if time > 0.05 * max(culprit.on_top_ns, 1):
            yield Evidence(f"time {_DOES[cause]}, more than typical", time, "ns")


def _ruled_out(culprit: Culprit) -> Iterator[str]:
    yield (
        "another rank: with its own work typical, any other saves "
        f"{ms(culprit.others_ns)} at most, replayed"
    )
    yield "inherited lateness: what it waits for others is no work of its own in the replay"
    if culprit.cause in ("compute", "host") and not culprit.persistent and culprit.spikes:
        yield f"every step: {counted(len(culprit.spikes), 'step')} hold most of it"


def _confidence(culprit: Culprit) -> Literal["high", "medium", "low"]:
    if culprit.doubt:
        return "low"
    return "high" if culprit.p_value < 1e-3 or culprit.spikes else "medium"


def _place(run: Measures, culprit: Culprit) -> str:
    """Where in the step most of its lateness is: before which call."""
    calls = run_graph(run).calls
    row = run.collectives.iloc[calls.row[culprit.call]]
    same = (calls.rank == calls.rank[culprit.call]) & (calls.step == calls.step[culprit.call])
    ops = run.collectives["op"].astype(object).to_numpy()[calls.row]
    alike = np.flatnonzero(same & (ops == row["op"]))
    number = int((alike < culprit.call).sum())
    order = ("first ", "second ", "third ")[number] if number < 3 else ""
    last = "last " if number and number == alike.size - 1 else order
    which = (order or last) if alike.size > 1 else ""
    dimension = dimension_of(run, int(calls.row[culprit.call]))
    return f"before the {which}{row['op']}" + (f" of {dimension}" if dimension else "")
