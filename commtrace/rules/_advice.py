"""What to do about ranks that delay the others, as far as it is known what they do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, codes, first_rows
from commtrace.arrays import numbered as numbers
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.run.builder import DEVICES
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.compared_with import compared_with
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.own_times import own_times
from commtrace.causal.work.segments import labelled
from commtrace.causal.work.usual import mean_of
from commtrace.diagnosis import Cause
from commtrace.intervals import intersect, total, union
from commtrace.metrics.rank.anomaly_checks import detects_anomalies
from commtrace.metrics.run.all_to_all_loads import IMBALANCE
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.run_clock import intervals_on_run
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import quantile
from commtrace.rules._advice_of_hosts import ANYTHING, of_host, of_own_copies, where
from commtrace.rules._slow_copies import PIN
from commtrace.rules._slow_device import slower_at_updates
from commtrace.rules._stalls import COMPILES, SAVE
from commtrace.units import clean, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ADVICE", "advice", "beside", "named", "receives"]

ADVICE: dict[Cause, str] = {
    "loader": "speed up data loading: more workers (num_workers), prefetching, pinned memory, or "
    "faster storage",
    "checkpoint": SAVE,
    "garbage-collection": "call gc.freeze() after setting up and gc.disable(), then gc.collect() "
    "on all ranks in the same steps, as well where the program calls it itself",
    "compute": "split the work evenly (batch, sequence lengths, layers); if it is even, look at "
    "clock rates and at what else runs there",
    "copy": PIN,
    "host": ANYTHING,
}
"""What to do about what a rank does."""
_NOW_AND_THEN = (
    "look at what it computes in these steps only, as an evaluation or statistics: share that "
    "among the ranks, or do it less often; if nothing, at clock rates and what else runs there"
)
_SLOWER_THEN = (
    "what runs there is what runs on the others, and no more: look at what is larger in these "
    "steps only, as batches; if nothing, at clock rates (nvidia-smi -q -d PERFORMANCE: heat, "
    "power) and what else runs there"
)
_SLOWER = (
    "hardly any kernels run there that others do not run: if batches, sequences or tables "
    "are larger there, split them evenly; else "
)
_CLOCKS = (
    "look at clock rates (nvidia-smi -q -d PERFORMANCE: heat, power) and at what else runs there"
)
_MANY = 0.25  # of all_to_alls
_SPREAD = (
    "times the mean's bytes in all_to_alls, and works on them: limit the experts' capacity, add a "
    "balancing loss, or place experts or tables otherwise"
)
_OWN = (
    "times the mean's bytes in all_to_alls, but only what it has sent before: its own batches or "
    "sequences are larger, split them evenly"
)
_READS_FOR_ALL = (
    "; if it reads for all ranks, which wait for it, let each read its own part (a "
    "DistributedSampler; in Accelerate dispatch_batches=False)"
)
_EVENLY = "split the work evenly (batch, sequence lengths, padding, experts' load)"
_OF_OPTIMIZERS = re.compile(r"addcdiv|addcmul|_fused_(?:adamw?|adagrad|sgd)_")
_SHARDS = (
    "its part of the optimizer is larger: who updates whole parameters, as "
    "ZeroRedundancyOptimizer does, may have the largest; shards of each are even (FSDP2)"
)
_OTHER_TYPE = "convert them to the type that the others work with"
_ON_CPU = (
    "; if nothing, at its number of threads, the layout of its tensors, and subnormal values "
    "(torch.set_flush_denormal)"
)
_MORE_WORK = (
    "if no other rank does such work, share it or do it less often; else split the data evenly"
)
_FOR_VOCABULARY = (
    ", as for a vocabulary: {give} fewer layers, or share the vocabulary among ranks (vocabulary "
    "parallelism)"
)
_FEWER_LAYERS = ": {give} fewer layers, so that all stages take as long"
_SUPPOSED = "the saving is that of even stages; work that is needless, if left out, saves"
_GRADED = (
    "the work grows from one rank to the next: split it evenly (in causal attention that is split "
    "by sequence give each rank a part of its front and one of its end, zig-zag or striped); the "
    "saving is that of even work; where they take longer for the same, look at clock rates"
)
_ANOMALIES = (
    "torch.autograd.set_detect_anomaly is on there: backward checks each gradient for NaN, and "
    "forward keeps the stack of each operator; switch it off, or on for a few steps only"
)
_DISPATCH_MODE = "PythonDispatchMode"  # what torch calls its time in a trace
_DISPATCHES = (
    "use it, as FlopCounterMode, in one step only and keep what it finds, or not while training"
)


def advice(culprit: Culprit, run: Measures) -> str:
    """What its ranks could do."""
    who, do, there = numbered("rank", culprit.ranks), _advice(culprit, run), where(culprit, run)
    if there and culprit.cause == "host":
        return f"{who}: {there}: {do}"
    return f"{who}: {do}; {there}" if there else f"{who}: {do}"


def _left_out(culprit: Culprit, run: Measures) -> str:
    """What a stage saves that does as the others, no more than what it runs more takes."""
    each_ns = np.asarray(culprit.instead_ns, dtype=np.float64)
    if isinstance(culprit.more, OwnOperators):
        each_ns = each_ns.clip(max=culprit.more.time_ns)
    return f"{ms(each_ns.mean())} per step" if has_steps(run) else f"{ms(each_ns.sum())} in all"


def _advice(culprit: Culprit, run: Measures) -> str:
    if culprit.graded:
        return _GRADED
    if culprit.instead_ns is not None and culprit.more is not None:
        return f"{_of_stage(culprit.more, culprit, run)}; {_SUPPOSED} {_left_out(culprit, run)}"
    if isinstance(culprit.more, OwnOperators):
        return _of_own(culprit.more, in_the_mean(culprit, run), several=len(culprit.ranks) > 1)
    if isinstance(culprit.more, Inputs):
        several = len(culprit.ranks) > 1
        return _of_larger(culprit.more, in_the_mean(culprit, run), several=several)
    if culprit.cause is None:
        return "no single cause: look at what is done there"
    if culprit.slower is not None:
        besides = _ON_CPU if run_graph(run).calls.on_cpu[culprit.call] else ""
        return (
            f"the same operators on the same inputs take {culprit.slower:.2f} times as long as on "
            f"the others: look at clock rates, and at what else runs there{besides}"
        )
    if times := receives(culprit, run):
        return f"it receives {times:.3g} {_OWN if _sends_first(culprit, run) else _SPREAD}"
    if culprit.cause == "compute" and _same_kernels(culprit, run):
        return _slower(culprit, run) if culprit.persistent else _SLOWER_THEN
    if culprit.cause == "compute" and _detects_anomalies(culprit, run):
        return _ANOMALIES
    if culprit.cause == "compute" and not culprit.persistent:
        return _NOW_AND_THEN
    if culprit.cause == "copy":
        return SAVE if _saves(culprit, run) else of_own_copies(culprit, run)
    if culprit.cause == "host":
        return of_host(culprit, run)
    if culprit.cause == "loader" and culprit.waits.mostly == "root":
        return ADVICE["loader"] + _READS_FOR_ALL
    return ADVICE[culprit.cause]


def _detects_anomalies(culprit: Culprit, run: Measures) -> bool:
    """Whether torch's anomaly detection is on there, and on no other rank that is looked at."""
    others = [rank for rank in run.rows("ranks").ints("rank").tolist() if rank not in culprit.ranks]
    if not others or not all(detects_anomalies(run, rank) for rank in culprit.ranks):
        return False
    return not detects_anomalies(run, others[0])


def _sends_first(culprit: Culprit, run: Measures) -> bool:
    """Whether of the first uneven all_to_all of most steps it sends more than it receives.

    Then what it receives in the next is its own.
    """
    rows = run.rows("collectives")
    mine = np.isin(rows.ints("rank"), culprit.ranks) & rows.coded("op").being("all_to_all")
    sent, received = rows.ints("in_bytes"), rows.ints("out_bytes")
    mine &= (np.minimum(sent, received) > 0) & (
        np.maximum(sent, received) >= IMBALANCE * np.minimum(sent, received)
    )
    at = np.flatnonzero(mine)
    at = at[np.argsort(rows.ints("start_ns")[at], kind="stable")]
    first = at[first_rows(codes(rows.ints("step")[at], rows.ints("rank")[at]))]
    return bool(first.size) and 2 * int((sent[first] > received[first]).sum()) > first.size


def receives(culprit: Culprit, run: Measures) -> float:
    """How many times the ranks' mean it receives in all_to_alls, if that is why it is late there.

    In a quarter of them at least: of two, one sends back what the other brought. Else 0.
    """
    known = culprit.graded or isinstance(culprit.more, OwnOperators) or culprit.slower is not None
    if known or culprit.cause != "compute":
        return 0.0
    rows = run.rows("collectives")
    op = rows.coded("op")
    if op.at(int(run_graph(run).calls.row[culprit.call])) != "all_to_all":
        return 0.0
    which = np.flatnonzero(op.being("all_to_all") & (rows.ints("out_bytes") != NULL))
    its, number = rows.take(which), numbers(operation_of(run)[which])
    received = its.ints("out_bytes")
    times = received / mean_of(received, number).clip(min=1)
    mine = times[np.isin(its.ints("rank"), culprit.ranks)]
    most = quantile(mine, 1 - _MANY) if mine.size else 0.0
    return most if most >= IMBALANCE else 0.0


def _same_kernels(culprit: Culprit, run: Measures) -> bool:
    """Whether its kernels before the call were compared: any that only it runs would be named."""
    on_cpu = run_graph(run).calls.on_cpu[culprit.call]
    return not on_cpu and compared_with(run, culprit.ranks, culprit.call).others.size > 0


def _slower(culprit: Culprit, run: Measures) -> str:
    """What to do about ranks that run what the others run, for longer."""
    times = slower_at_updates(run, culprit.ranks)
    if times is None:
        return f"{_SLOWER}{_CLOCKS}"
    whose = "their GPUs are" if len(culprit.ranks) > 1 else "its GPU is"
    return (
        f"{whose} slower: parameters' updates, which no batch makes larger, take {times:.2f} "
        f"times as long as on the others; {_CLOCKS}"
    )


def _saves(culprit: Culprit, run: Measures) -> bool:
    """Whether most of what its device did before the call lies in a label of a checkpoint."""
    rank, its = culprit.ranks[0], run_graph(run)
    labels = labelled(run)["checkpoint"].get(rank)
    if labels is None:
        return False
    there = (its.calls.rank == rank) & (its.calls.place == its.calls.place[culprit.call])
    if not culprit.persistent:
        there &= np.isin(its.step_of, culprit.spikes)
    work = own_times(run, DEVICES)
    _, *when = work.of(there[work.call])
    did = union(*when)
    return 2 * total(intersect(did, intervals_on_run(run, rank, labels))) > total(did)


def named(operators: Sequence[str]) -> str:
    """Operators, one behind the other."""
    return ", ".join(clean(name.rpartition(": ")[2], 40) for name in operators)


def in_the_mean(culprit: Culprit, run: Measures) -> str:
    """Of which steps a mean of what they do more is: of all, or of those in which they stall.

    A run without steps has one.
    """
    if not has_steps(run):
        return "in all"
    return "in such a step" if culprit.spikes and not culprit.persistent else "a step in the mean"


def _of_stage(more: OwnOperators | Inputs, culprit: Culprit, run: Measures) -> str:
    """What to do about a stage of a pipeline that has more to do."""
    in_step, several = in_the_mean(culprit, run), len(culprit.ranks) > 1
    give = "give them" if several else "give it"
    if isinstance(more, Inputs):
        whose, do = "their" if several else "its", _FEWER_LAYERS.format(give=give)
        took = f"{named(more.names)}: {ms(more.larger_ns)} {in_step}"
        return f"{whose} operators work on more than the other stages' ({took}){do}"
    do = _FOR_VOCABULARY if more.of_vocabulary else _FEWER_LAYERS
    do, runs = do.format(give=give), "they run" if several else "it runs"
    return (
        f"{runs} {round(more.count):,} {more.kind} more than the other stages, {in_step} "
        f"({named(more.names)}: {ms(more.time_ns)}){do}"
    )


def _of_own(more: OwnOperators, in_step: str, *, several: bool) -> str:
    if more.compiles:
        took = f"{ms(more.compiling_ns)} {in_step}"
        return f"torch.compile compiles anew there ({took}), {COMPILES}"
    runs = "they run" if several else "it runs"
    return (
        f"{runs} there {round(more.count):,} {more.kind} more than the others, {in_step} "
        f"({named(more.names)}: {ms(more.time_ns)}): {_MORE_WORK}"
    )


def _of_larger(more: Inputs, in_step: str, *, several: bool) -> str:
    mine, others = more.example
    whose = "their" if several else "its"
    if more.names[:1] == (_DISPATCH_MODE,) and not others:
        took = f"{whose} operators take {ms(more.larger_ns)} longer {in_step}"
        return f"{took}, as a dispatch mode runs Python in each: {_DISPATCHES}"
    (size, _, kind), (usual, _, usual_kind) = (its.partition(" ") for its in more.example)
    do = _SHARDS if any(map(_OF_OPTIMIZERS.search, more.names)) else _EVENLY
    do = _OTHER_TYPE if size == usual and kind != usual_kind else do
    more_there = f"{named(more.names)}: {ms(more.larger_ns)} {in_step}"
    return (
        f"{whose} operators work on more than the others' ({more_there}), as on "
        f"{beside(mine, others)}: {do if others else _MORE_WORK}"
    )


def beside(mine: str, others: str) -> str:
    """What operators work on, and what the others' in place of that."""
    return f"{mine} in place of {others}" if others else f"{mine}, as no other does"
