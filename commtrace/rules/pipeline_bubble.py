"""The stages of a pipeline wait while it fills and drains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import distinct
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.edits.own_pace import unrecorded_pace
from commtrace.causal.savings import of_unrecorded
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.expect import nccl_latency_ns
from commtrace.metrics.run.pipelines import Messages, chains_of, messages_of
from commtrace.metrics.run.whole import of_time, share_pct, whole, worth_reporting
from commtrace.rules._pipeline_waits import (
    calls_of,
    drains_of,
    fixed_ns,
    for_culprits_ns,
    idle_ns,
    may_be_a_bubble,
    step_messages,
)
from commtrace.rules._rule import Rule
from commtrace.rules._slow_links import waits_left
from commtrace.rules._uneven_stages import heaviest_stage
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_TIMES_MORE = 4
_UNSURE = " (not sure: on CPUs small micro-batches may take nearly as long as large ones)"
_ENOUGH = 2  # micro-batches for each stage, on CPUs
_MUCH = 0.1  # of the waiting
_UNLIKE = 2.0  # times what each of equal micro-batches has
_INTERLEAVED = (
    "; on smaller ones kernels may be less efficient, which interleaving (several model chunks per "
    "stage) avoids"
)
_MORE_CHUNKS = "; on smaller ones kernels may be less efficient, which more chunks per stage avoid"


class PipelineBubble(Rule, frozen=True):
    """Stages of a pipeline wait for their neighbours a large part of the step.

    What it detects
        Ranks whose sends and recvs (at least ``min_operations``) form a chain, or, interleaved, a
        ring, several messages going over each link of it in a step, or one that comes back as
        large, as a gradient does, where all but one send on only what they have received: a
        pipeline of p stages with m micro-batches. It fires where four times as many would save at
        least ``min_step_share`` of the steps' time of the stages' mean waiting in these sends and
        recvs, and in what they call together right behind the last of a step, with no compute
        beside it and without what late stages and a slow link cause. Or where the largest micro-
        batch has more than twice the bytes that equal ones had, and as much is waited beyond what
        these cost. Or where stages take turns: the first sends no micro-batch before the last one's
        gradient is back.

    Why it costs time
        While the pipeline fills, later stages have nothing to do, while it drains the
        earlier: even with equal stages (p-1)/(m+p-1) of the time is idle.

    What to do
        More micro-batches per step, or a schedule that interleaves several parts of the model per
        stage. Where the waits are far longer than that, balance the stages, and make micro-batches
        alike. The potential saving is that of four times as many: a stage waits for p-1
        micro-batches, each then a quarter as long, no more than equal stages wait. What the added
        ones take however small they are is subtracted: the latency of messages, taken from the
        shortest, and of tensor parallelism's sums, and a few µs for each kernel or operator; that
        kernels are less efficient on small micro-batches is not. Of unlike micro-batches it is what
        equal ones would not wait; of stages that take turns, what equal stages save that work at
        once, 1 - (m+p-1)/(mp).

    Blind spots
        Interleaved schedules of two stages, whose links do not show it. A stage that waits
        elsewhere, or longer for other pipelines. On CPUs small micro-batches may take nearly as
        long as large ones: of twice as many as stages more are not advised. Ranks that exchange
        the edges of their domains with both neighbours at once are no pipeline.
    """

    may_be_needed: ClassVar[bool] = True
    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)
    moots: ClassVar[tuple[str, ...]] = ("exposed-communication",)  # a stage needs what it waits for
    explained_by_share: ClassVar[float] = 1 / 3  # what equal stages wait, too, is no fault of them

    min_operations: int = 6  # in three steps one goes there and one back
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of pipeline: tensor parallelism has one for each of its ranks."""
        messages = messages_of(run, self.min_operations)
        if not (handing_on := [*chains_of(messages)]):
            raise CannotLook("needs sends and recvs that form the chain of a pipeline")
        alike: dict[tuple[int, int], list[_Pipeline]] = defaultdict(list)
        ends, left, times = step_messages(run), waits_left(run), _times(run)
        for chain, mine in handing_on:
            micro_batches = mine.per_step
            drains = drains_of(run, chain, ends.behind)
            waiting = float(np.mean([idle_ns(run, mine.rows, rank, drains) for rank in chain]))
            late = for_culprits_ns(run, chain, drains, ends.sent_ns, self.min_step_share)
            waiting = max(waiting - late / times, 0.0)
            waiting *= left(np.append(calls_of(run, chain), drains))
            filling = _filling_ns(run, mine, len(chain), waiting)
            largest = _unlike(mine)
            equal = _if_alike_ns(mine, len(chain), waiting - filling) if largest else 0
            in_turn = _if_at_once_ns(run, mine, len(chain), waiting)
            more = 0 if _has_enough(mine, len(chain)) else _gain_ns(run, mine.rows, filling, chain)
            gain = max(more, equal, in_turn)
            matters = worth_reporting(times * gain, run, self.min_step_share)
            if mine.is_pipeline and matters:
                unlike = largest if gain == equal else None
                its_like = alike[len(chain), micro_batches]
                turns = gain == in_turn > 0
                its_like.append(
                    _Pipeline(chain, mine.chunks, waiting, filling, gain, unlike, turns)
                )
        for (stages, micro_batches), its in alike.items():
            mine = messages.of([rank for one in its for rank in one.ranks])
            yield self._finding(mine, its, stages, micro_batches if mine.has_steps else None, run)

    def _finding(
        self,
        messages: Messages,
        pipelines: list[_Pipeline],
        stages: int,
        batches: int | None,
        run: Measures,
    ) -> Finding:
        """``batches`` are a step's micro-batches times chunks, None in a run without steps."""
        most = max(pipelines, key=lambda its: its.gain_ns)  # they run at once
        measured = share_pct(most.waiting_ns, run)
        ideal = None if batches is None else _bubble_pct(stages, batches)
        saved_ns = round(_times(run) * most.gain_ns)
        uneven = ideal is None or measured > 1.25 * ideal
        who = f"{stages} pipeline stages"
        if len(pipelines) > 1:
            who = f"the {stages} stages of {len(pipelines)} pipelines"
        equal = ""
        if batches is not None:
            leave = "leaves" if batches == most.chunks else "leave"
            equal = f"; with equal stages, {most.of(batches)} {leave} {ideal:.0f} % idle"
            if most.largest is not None:
                equal += f", but the largest has {100 * most.largest:.0f} % of a step's bytes"
            if most.take_turns:
                equal += ", but the first sends none before the last one's gradient is back"
        unsure = (
            _UNSURE if _on_cpus(messages) and batches is not None and not most.take_turns else ""
        )
        return self.finding(
            messages.rows,
            summary=f"{who} wait {measured:.0f} % of the time for their neighbours{equal}{unsure}",
            ranks=tuple(messages.ranks.tolist()),
            cost_ns=saved_ns,
            evidence=(
                Evidence("mean waiting of a stage", most.waiting_ns, "ns"),
                Evidence(f"share {of_time(run)}", measured, "%"),
                Evidence(
                    f"could be saved, {of_time(run)}",
                    share_pct(saved_ns, run),
                    "%",
                    100 * self.min_step_share,
                ),
                *_of_batches(ideal, batches, most.chunks),
                *of_unrecorded(run),
            ),
            ruled_out=() if uneven else ("uneven stages: the waits are what equal ones must cost",),
            advice=_advice(most, stages, batches, uneven=uneven, run=run),
            confidence="low" if batches is None or unsure else "medium",
            explains=self._in_turn(run) if batches == most.chunks else None,
        )

    def _in_turn(self, run: Measures) -> tuple[str, ...] | None:
        """With one micro-batch stages can only take turns: who may only seem late is a symptom."""
        found = culprits(run, self.min_step_share).found
        if not found or not all(its.doubt and may_be_a_bubble(run, its) for its in found):
            return None
        return (*self.explains, "straggler")

    @staticmethod
    def bad() -> Measures:
        """Two stages, two micro-batches a step: the second stage waits a third of the time."""
        return _run(steps=6, micro_batches=2)

    @staticmethod
    def good() -> Measures:
        """The same with forty micro-batches in one step."""
        return _run(steps=1, micro_batches=40)


def _run(steps: int, micro_batches: int) -> Measures:
    run = Tiny(ranks=2)
    length = (micro_batches + 1) * 1000
    for step in range(steps):
        start = step * length
        for rank in (0, 1):
            run.step(rank, step, start, length)
        for batch in range(micro_batches):
            ready = start + (batch + 1) * 1000
            posted = ready - 5 if batch else start + 5
            run.kernel(0, ready - 990, 980)
            run.collective(0, "send", ready - 5, 10, size=1 << 20, peer=1)
            run.collective(1, "recv", posted, ready + 5 - posted, size=1 << 20, peer=0)
            run.kernel(1, ready + 6, 980)
    return run.trace()


def _of_batches(ideal: float | None, batches: int | None, chunks: int) -> Iterator[Evidence]:
    if ideal is not None and batches is not None:
        yield Evidence("bubble of equal stages", ideal, "%")
        unit = "micro-batches" if chunks == 1 else "messages"
        yield Evidence("messages per link, direction and step, without headers", batches, unit)


def _advice(
    most: _Pipeline, stages: int, batches: int | None, *, uneven: bool, run: Measures
) -> str:
    if batches is None:
        return (
            f"{_TIMES_MORE} times as many micro-batches, as much smaller; or balance the stages: "
            "without steps in the trace (prof.step()) nothing tells which it is"
        )
    if most.largest is not None:
        return (
            f"make the micro-batches alike, each {100 / batches:.0f} % of a step's work: deal out "
            "tokens or sorted lengths, not documents as they come"
        )
    if most.take_turns:
        return (
            "stages take turns: send several micro-batches forward before waiting for the first "
            "one's gradient (GPipe; 1F1B: each stage starts as many as there are stages behind it)"
        )
    more, now = _TIMES_MORE * batches, batches // most.chunks
    advice = (
        f"with {_TIMES_MORE * now} micro-batches instead of {now}, equal stages are idle only "
        f"{_bubble_pct(stages, more):.0f} % of the time"
    )
    added = (1 - 1 / _TIMES_MORE) * most.filling_ns - most.gain_ns
    if added > _MUCH * most.filling_ns:
        advice += f", but what each takes whatever its size adds {ms(added)}"
    advice += _INTERLEAVED if most.chunks == 1 else _MORE_CHUNKS
    if not uneven:
        return advice
    if heaviest := heaviest_stage(run, most.ranks):
        return f"balance the stages: {heaviest}; {advice}"
    return f"{advice}; the rest is uneven stages or slow messages: balance the stages"


def _bubble_pct(stages: int, micro_batches: int) -> float:
    """What equal stages wait: (p-1)/(m+p-1), as GPipe's paper has it (arXiv:1811.06965).

    With v chunks each, m times v in place of m (arXiv:2104.04473).
    """
    return 100 * (stages - 1) / (micro_batches + stages - 1)


def _filling_ns(run: Measures, mine: Messages, stages: int, waiting: float) -> float:
    """What of the waiting is while the pipeline fills and drains: the rest stays.

    However uneven the stages are, the slowest is idle no longer than equal ones would be.
    """
    if not mine.has_steps:
        return waiting
    return min(waiting, _bubble_pct(stages, mine.per_step) / 100 * whole(run).time_ns)


def _unlike(mine: Messages) -> float | None:
    """What the largest of a step's micro-batches holds of its bytes; None if they are alike."""
    if not mine.has_steps:
        return None
    largest = mine.largest_share
    return largest if largest > _UNLIKE / mine.per_step else None


def _if_alike_ns(mine: Messages, stages: int, beyond: float) -> int:
    """What equal micro-batches gain: their bubble is a part of all that they take."""
    return round(beyond / (1 - _bubble_pct(stages, mine.per_step) / 100))


def _if_at_once_ns(run: Measures, mine: Messages, stages: int, waiting: float) -> int:
    """What is gained where stages work at once, not in turn; 0 where they do not take turns."""
    batches = mine.per_step
    if not mine.has_steps or batches == 1 or not (mine.come_back and mine.take_turns):
        return 0
    left = (batches + stages - 1) / (batches * stages)
    return round(min(waiting, (1 - left) * whole(run).time_ns))


def _has_enough(mine: Messages, stages: int) -> bool:
    """Whether more micro-batches would rather cost than save time."""
    return mine.has_steps and _on_cpus(mine) and mine.per_step >= _ENOUGH * stages


def _on_cpus(mine: Messages) -> bool:
    return bool(mine.rows.coded("device").being("cpu").all())


def _times(run: Measures) -> float:
    """How long a step of GPUs is that nobody records, of a recorded one."""
    its = unrecorded_pace(run)
    return its.times if its else 1.0


def _gain_ns(run: Measures, rows: Rows, waiting: float, chain: list[int]) -> int:
    """What so many more micro-batches gain, less what they take however small they are.

    A message takes a latency, on GPUs NCCL's at most.
    """
    took = rows.ints("end_ns") - rows.ints("arrival_ns") - rows.ints("wait_ns")
    latency = max(float(took.min()), 0.0)
    if not rows.coded("device").being("cpu").any():
        latency = min(latency, nccl_latency_ns("send", 2, nodes=2, protocol="Simple"))
    messages = len(rows) / distinct(rows.ints("rank")).size
    added = (_TIMES_MORE - 1) * (messages * latency + fixed_ns(run, chain))
    return max(round(waiting * (1 - 1 / _TIMES_MORE) - added), 0)


class _Pipeline(Struct, frozen=True):
    """Its stages' ranks and chunks, how long a stage waits, in all and to fill, and the gain.

    By equal micro-batches where these are so unlike that most is: ``largest`` is what the largest
    holds of a step's bytes. Or by working at once, where they ``take_turns``.
    """

    ranks: list[int]
    chunks: int
    waiting_ns: float
    filling_ns: float
    gain_ns: int
    largest: float | None
    take_turns: bool

    def of(self, batches: int) -> str:
        """In words, so many micro-batches times chunks."""
        count = counted(batches // self.chunks, "micro-batch")
        return count if self.chunks == 1 else f"{count} in {self.chunks} chunks"
