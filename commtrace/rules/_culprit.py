"""What rules say of ranks that delay the others: the same measurements, in the same words."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from commtrace.arrays import NULL, Int64, distinct
from commtrace.causal.blame.by_step import excess_by_step
from commtrace.causal.blame.culprit import Culprit, awaited_in, does_more
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.blame.step_patterns import CHANCE, CHANCE_IF_COUNTED
from commtrace.causal.edits.own_pace import undisturbed, unrecorded_pace
from commtrace.causal.run.recorded_steps import steps_in_common
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, of_unrecorded
from commtrace.causal.work.beside_waits import slowed_beside_waits_ns
from commtrace.causal.work.cores import foreign_load, processor
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.diagnosis import HOST_CAUSES, Cause, Evidence, Finding
from commtrace.metrics.rank.hosts import one_host
from commtrace.metrics.run.group_dimensions import dimension_of
from commtrace.metrics.run.kernels_compared import times_beside
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import has_steps, of_time, part_of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._advice import advice, in_the_mean
from commtrace.rules._pipeline_waits import may_be_a_bubble
from commtrace.rules._uneven import even_split
from commtrace.units import clean, counted, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.rules._rule import Rule

__all__ = ["OF_HOST", "delays"]

OF_HOST = ("copy-loop", "launch-gap")
"""The rules whose findings are symptoms of a host's lateness."""

_ALIKE = 2  # times as long: of stalls that differ by more the longest is told
_LEFT_OUT = 0.1  # of the saving: less than that is not worth a word
_HARDLY, _OFTEN = 0.2, 0.2  # of what they do more in the mean step; of the steps
_Confidence = Literal["high", "medium", "low"]
_LESS: dict[_Confidence, _Confidence] = {"high": "medium", "medium": "low", "low": "low"}

_DOES: dict[Cause, str] = {
    "loader": "in its data loader",
    "checkpoint": "saving a checkpoint",
    "garbage-collection": "collecting garbage",
    "compute": "computing",
    "copy": "copying",
    "host": "running no operator",
}


def delays(
    rule: Rule,
    run: Measures,
    min_step_share: float,
    kind: str,
    *,
    who: str = "",
    causes: Collection[Cause | None] | None = None,
) -> Iterator[Finding]:
    """A finding of that rule for each of the culprits that others await mostly in one kind.

    Of the kind "collective" also where they await it in messages, but for what it computes.
    ``kind`` is one of AWAITED; ``causes`` are those of the culprits, by default any. ``who``
    is what they are in these operations. CannotLook where replays say nothing.
    """
    for culprit in culprits(run, min_step_share).found:
        if not culprit.waits.call.size or _hardly_shared(run, culprit, min_step_share):
            continue
        awaited = awaited_in(run, culprit)
        computes = awaited in ("send", "recv") and does_more(run, culprit)
        if awaited != kind and not (computes and kind == "collective"):
            continue
        if causes is None or culprit.cause in causes:
            its = _finding(rule, culprit, run, who, min_step_share)
            # Then it is a straggler, which explains the rest.
            yield replace(
                its,
                explains=() if computes and awaited == kind else its.explains,
                behind=culprit.in_turn,
            )


def _hardly_shared(run: Measures, culprit: Culprit, min_step_share: float) -> bool:
    """Whether sharing evenly what it does more saves too little, as of a last stage's loss."""
    return culprit.shared and not worth_reporting(culprit.on_top_ns, run, min_step_share)


def _finding(
    rule: Rule, culprit: Culprit, run: Measures, who: str, min_step_share: float
) -> Finding:
    waits = culprit.waits
    both = np.flatnonzero(steps_in_common(run, culprit.ranks))
    count, each = both.size, culprit.steps_ns
    place, part = _place(run, culprit), "step" if has_steps(run) else "tenth"
    does = f", {_does(culprit.cause, culprit, run)}" if culprit.cause else ""
    unsure = f" (not sure: {culprit.doubt})" if culprit.doubt else ""
    whom = f"{numbered('rank', culprit.ranks)}{_on_one_host(run, culprit.ranks)}"
    if who and not culprit.shared:  # what a stage does with messages is not why it has more to do
        whom = f"{who} {whom}"
    if count < each.size:
        unsure += f"; {count} of {each.size} steps were recorded there and elsewhere"
    compared, sure = _compared(run, culprit.ranks), _confidence(culprit)
    besides = _slowed(run, culprit, part)
    even = even_split(run, culprit, min_step_share)
    even_ns = 0 if even.mostly_bytes else even.bytes_ns
    split = "; the saving is that of an even split" if even.part < 1 else ""
    if even_ns > _LEFT_OUT * culprit.on_top_ns:
        besides += f"; in the saving are {ms(even_ns / each.size)} a {part} of all_to_alls, if even"
    return rule.finding(
        (waits.start_ns, np.maximum(waits.end_ns, waits.start_ns + 1)),
        summary=f"{whom} {_how(run, culprit, both)}{does} {place}{unsure}{compared}{besides}",
        ranks=culprit.ranks,
        streams=(),
        saving=Saving(max(culprit.saved_ns, 0), max(culprit.on_top_ns, 0), culprit.replayed_step_ns)
        .of_part(even.part, each.size)
        .and_also(even_ns, each.size),
        place=place,
        cause=culprit.cause,
        evidence=tuple(_evidence(culprit, run, min_step_share)),
        ruled_out=tuple(_ruled_out(culprit)),
        advice=advice(culprit, run) + split + _unrecorded(run),
        confidence=_LESS[sure] if compared or (culprit.shared and not culprit.graded) else sure,
        operations=_operations(run, culprit),
        explains=_explains(run, rule, culprit, even_ns),
        # What is saved where work is shared is less than what others wait for it.
        weighs_ns=0 if culprit.instead_ns is None else int(culprit.instead_ns.sum()),
    )


def _how(run: Measures, culprit: Culprit, both: Int64) -> str:
    """How often they delay the run, and by how much: in ``both``, the steps that all recorded."""
    each, count, spikes = culprit.steps_ns, both.size, len(culprit.spikes)
    stall, delay = ("stall", "delay") if len(culprit.ranks) > 1 else ("stalls", "delays")
    late = each[both if culprit.persistent else list(culprit.spikes)]
    mean = ms(float(late.mean()))
    if culprit.persistent and not has_steps(run):
        return f"{delay} the run by {ms(float(each.sum()))}"
    if culprit.persistent:
        every = culprit.in_every and not _is_idle_in_some(run, culprit, both)
        steps = f"every step by {mean}" if every else f"steps by {mean} in the mean"
        return f"{delay} {steps}"
    part, whole = ("step", "") if has_steps(run) else ("tenth", " of the run")
    of = f"of {counted(count, part)}{whole}"
    lasts = culprit.spikes == tuple(both[count - spikes :].tolist()) and 1 < spikes < count
    if lasts:
        return f"{delay} the last {spikes} {of} by {mean}"
    long = mean if late.max() <= _ALIKE * late.min() else f"up to {ms(float(late.max()))}"
    return f"{stall} for {long} in {spikes} {of}"


def _is_idle_in_some(run: Measures, culprit: Culprit, steps: Int64) -> bool:
    """Whether in many of these steps they hardly do more than the others, and so delay nobody.

    That nothing is saved in a step does not tell it: another may be as late there.
    """
    ranks, more = excess_by_step(run, undisturbed(run))
    did = more[np.isin(ranks, culprit.ranks)].mean(axis=0)[steps]
    return bool((did < _HARDLY * did.mean()).mean() >= _OFTEN)


def _slowed(run: Measures, culprit: Culprit, part: str) -> str:
    """That the others would compute faster as well, in words, if it is worth it."""
    slowed = slowed_beside_waits_ns(run, culprit.ranks)
    if slowed <= _LEFT_OUT * culprit.on_top_ns:
        return ""
    whom = "it" if len(culprit.ranks) == 1 else "them"
    times = times_beside(run)
    how = f" ({times:.2f} times as long)" if times > 1 else ""
    return (
        f"; communication that waits for {whom} also slows the others' kernels{how}, about "
        f"{ms(slowed / culprit.steps_ns.size)} a {part} that the saving leaves out"
    )


def _explains(run: Measures, rule: Rule, culprit: Culprit, even_ns: int) -> tuple[str, ...] | None:
    """What a host does not do in time, too, if that is sure; None as the rule has it."""
    if even_ns:
        return (*rule.explains, "uneven-all-to-all")
    if culprit.doubt and may_be_a_bubble(run, culprit):  # which makes it late then
        return tuple(its for its in rule.explains if its != "pipeline-bubble")
    if culprit.cause not in HOST_CAUSES:
        return None
    if culprit.doubt:
        return tuple(its for its in rule.explains if its not in OF_HOST)
    return (*rule.explains, *OF_HOST)


def _unrecorded(run: Measures) -> str:
    """That the saving is of steps that nobody records, in words."""
    its = unrecorded_pace(run)
    return f"; {its.of_saving}" if its else ""


def _on_one_host(run: Measures, ranks: tuple[int, ...]) -> str:
    """That they are all of one of several hosts, in words: then it may be the host's."""
    host = one_host(run, ranks)
    return f", all of host {clean(host)}," if host and len(ranks) > 1 else ""


def _operations(run: Measures, culprit: Culprit) -> Int64:
    """Those that most of its lateness is before, in all steps."""
    calls = run_graph(run).calls
    its: Int64 = calls.operation[calls.place == calls.place[culprit.call]]
    return its


def _evidence(culprit: Culprit, run: Measures, min_step_share: float) -> Iterator[Evidence]:
    chance = CHANCE if culprit.more is None else CHANCE_IF_COUNTED
    typical_ns = culprit.steps_ns if culprit.instead_ns is None else culprit.instead_ns
    typical = median(typical_ns)
    part = part_of_time(run)
    yield Evidence(f"saved per {part} if typical, median", typical, "ns", 2 * culprit.noise_ns)
    if culprit.shared:
        shared = median(culprit.steps_ns)
        of = "ranks" if culprit.graded else "stages"
        yield Evidence(f"saved per {part} if all {of} do as much, median", shared, "ns")
    yield Evidence(
        f"chance that it is not in every {part}, corrected", culprit.p_value, "probability", chance
    )
    yield Evidence("most that any other rank saves", culprit.others_ns, "ns")
    share = share_pct(culprit.on_top_ns, run)
    yield Evidence(f"share {of_time(run)}", share, "%", 100 * min_step_share)
    yield from of_unrecorded(run)
    if took := processor(run, culprit.ranks):
        yield Evidence("processor time, by what is usual of the others", took.times, "x")
    if foreign := foreign_load(run, culprit.ranks):
        yield Evidence("share of the CPU cores that other processes took", 100 * foreign, "%")
    for cause, time in culprit.parts_ns.items():
        if time > 0.05 * max(culprit.on_top_ns, 1):
            doing = _does(cause, culprit, run)
            yield Evidence(f"time {doing}, more than typical", time, "ns")
    if isinstance(more := culprit.more, OwnOperators):
        said = f"{more.kind} more than the others run there, {in_the_mean(culprit, run)}"
        yield Evidence(said, more.count, more.kind)
    elif isinstance(more, Inputs):
        said = f"time that operators take longer on larger inputs, {in_the_mean(culprit, run)}"
        yield Evidence(said, more.larger_ns, "ns")
    if (slowed := slowed_beside_waits_ns(run, culprit.ranks)) > _LEFT_OUT * culprit.on_top_ns:
        beside = (
            "time that others compute longer beside communication that waits, not in the saving"
        )
        yield Evidence(beside, slowed, "ns")
    if culprit.slower is not None:
        yield Evidence("time for the same operators on the same inputs", culprit.slower, "x")


def _does(cause: Cause, culprit: Culprit, run: Measures) -> str:
    if culprit.shared and cause == culprit.cause:
        return f"computing more than the other {'ranks' if culprit.graded else 'stages'}"
    if cause == "host" and isinstance(culprit.more, OwnOperators):
        if culprit.more.kind == "kernels":
            return "launching kernels that the others do not run"
        alone = "it runs" if len(culprit.ranks) == 1 else "they run"
        return f"in Python, between operators that only {alone}"
    if cause == "host" and not run_graph(run).calls.on_cpu.any():
        return "launching nothing"
    if cause == "loader" and len(culprit.ranks) > 1:
        return "in their data loaders"
    return _DOES[cause]


def _ruled_out(culprit: Culprit) -> Iterator[str]:
    yield (
        "another rank: with its own work typical, any other saves "
        f"{ms(culprit.others_ns)} at most, replayed"
    )
    yield "inherited lateness: what it waits for others is no work of its own in the replay"
    if culprit.cause in ("compute", "host") and not culprit.persistent and culprit.spikes:
        count = len(culprit.spikes)
        yield f"every step: {counted(count, 'step')} {'holds' if count == 1 else 'hold'} most of it"


def _compared(run: Measures, ranks: tuple[int, ...]) -> str:
    """How many ranks were compared, in words, where some of those in their operations lack."""
    world = run.rows("ranks").ints("world_size").max(initial=NULL)
    there = run.rows("collectives").ints("rank")
    if world == NULL or distinct(there).size >= world:
        return ""
    matches = matched(run).matches
    present, expected = matches.ints("present"), matches.ints("expected")
    lacking = np.isin(there, ranks) & (present > 1) & (present < expected)
    if not lacking.any():
        return ""
    most, compared = max(zip(expected[lacking].tolist(), present[lacking].tolist(), strict=True))
    return f"; only {compared} of {most} ranks were compared"


def _confidence(culprit: Culprit) -> _Confidence:
    if culprit.doubt:
        return "low"
    return "high" if culprit.p_value < 1e-3 or culprit.spikes else "medium"


def _place(run: Measures, culprit: Culprit) -> str:
    """Where in the step most of its lateness is: before which call."""
    calls = run_graph(run).calls
    same = (calls.rank == calls.rank[culprit.call]) & (calls.step == calls.step[culprit.call])
    ops, ran = (run.rows("collectives").coded(name).take(calls.row) for name in ("op", "executed"))
    # Of messages that are sent and received at once, one that others await.
    at_once = same & (calls.start_ns == calls.start_ns[culprit.call])
    awaited = np.flatnonzero(at_once & ops.being(awaited_in(run, culprit)))
    call = int(awaited[0]) if awaited.size else culprit.call
    op = ops.at(call) or ran.at(call) or "operation"
    alike = np.flatnonzero(same & (ops.codes == ops.codes[call]))
    number = int((alike < call).sum())
    order = ("first ", "second ", "third ")[number] if number < 3 else ""
    last = "last " if number and number == alike.size - 1 else order
    which = (order or last) if alike.size > 1 else ""
    dimension = dimension_of(run, int(calls.row[call]))
    return f"before the {which}{op}" + (f" of {dimension}" if dimension else "")
