"""Somebody is always late, but never the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from commtrace.arrays import Int64, distinct
from commtrace.causal.blame.collected import collected_in_turn
from commtrace.causal.chance import above_zero
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Saving, of_unrecorded
from commtrace.causal.work.cores import foreign_load, taken_cores
from commtrace.causal.work.inputs import Inputs, same_in_turn
from commtrace.causal.work.segments import LABELLED
from commtrace.diagnosis import Evidence, Finding
from commtrace.intervals import total
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.rank.timelines import starved_when
from commtrace.metrics.run.whole import (
    has_steps,
    of_time,
    part_of_time,
    share_pct,
    worth_reporting,
)
from commtrace.quantiles import median
from commtrace.rules._advice import ADVICE, beside, named
from commtrace.rules._culprit import OF_HOST
from commtrace.rules._rule import Rule
from commtrace.rules._turns import CHANCE_IF_COUNTED, cause, most_kernels, turns, waiting
from commtrace.synthetic import Tiny
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_MEAN = "all did each part of it in their mean time"
_OF_HOSTS = (
    "hosts launch late in turn: look at what they do then, as collecting garbage (gc.freeze(), "
    "gc.disable(), then gc.collect() on all ranks in the same steps), loading data or logging"
)


class Jitter(Rule, frozen=True):
    """Ranks take turns being late, so that everybody always waits for somebody.

    What it detects
        The run is replayed with every rank's own work between two operations as long as the
        ranks' mean at that place of the step, after the work of those that are late in every step
        (see straggler) was made typical. It fires where this saves at least ``min_step_share`` of
        the steps' time: beyond chance or noise in each step, or mostly in several steps that are
        far above the others; not where most of it are ranks that are late in every step, each for
        too little to be told. Less is asked where who is late works on larger inputs than the
        others, as recorded shapes say. It fires, too, where garbage that ranks collect in turn, as
        a recording shows, costs so much. Pauses of GPUs' hosts need not be: the potential saving is
        then that of work that is typical of the others, not of their mean.

    Why it costs time
        Each collective waits for the slowest of all ranks at that moment. The expected
        maximum of n times that vary grows with n, though their mean does not.

    What to do
        Synchronise less often: accumulate gradients, larger buckets, no barriers. Make the
        times alike: batches of equal length, pinned and enough cores, no other processes. What
        ranks do in turn, as collecting garbage, let all do in the same steps.

    Blind spots
        Whether the work varies or the machine does, unless the recording tells that other processes
        took the cores: then it is not sure. What separates ranks on several hosts by
        less than the clocks' error. Some of it is noise that every machine has.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding."""
        found = [*self._by_turns(run)]
        sure = [its for its in found if its.confidence != "low"]
        yield from sure or [*self._collecting(run)] or found

    def _collecting(self, run: Measures) -> Iterator[Finding]:
        """What is lost to garbage that is collected by turns, however else the work varies."""
        steps = collected_in_turn(run, self.min_step_share)
        p_value = above_zero(steps.astype(np.float64))
        cost = int(steps.sum())
        if p_value > CHANCE_IF_COUNTED or not worth_reporting(cost, run, self.min_step_share):
            return
        when = _shorter(run, steps, ())
        yield self._finding(
            run,
            Saving(cost, cost),
            f"ranks take turns collecting garbage: {when} shorter without",
            _evidence(run, steps, p_value, CHANCE_IF_COUNTED, self.min_step_share),
            ADVICE["garbage-collection"],
            "medium",
        )

    def _by_turns(self, run: Measures) -> Iterator[Finding]:
        """What is lost where somebody is late in each step, or in a few, and never the same."""
        share = self.min_step_share
        its = turns(run, share)
        if its is None:
            return
        steps, stalls, uneven = its.steps_ns, its.stalls, its.uneven
        cost = int(steps.sum())
        doubt = None if uneven else taken_cores(run) or _same(run, cost) or _unknown_cores(run)
        yield self._finding(
            run,
            Saving(cost, cost),
            f"ranks take turns being late{_when(run, stalls)}: {_shorter(run, steps, stalls)} "
            f"shorter if {'none of them paused' if its.of_pauses else _MEAN}"
            f"{f' (not sure: {doubt})' if doubt else ''}",
            _evidence(run, steps, its.p_value, its.max_chance, share),
            _of_uneven(uneven) if uneven else _advice(run, cost),
            "low" if doubt else "medium",
            (*self.explains, *OF_HOST) if its.of_pauses else None,
        )

    def _finding(
        self,
        run: Measures,
        saving: Saving,
        summary: str,
        evidence: tuple[Evidence, ...],
        advice: str,
        confidence: Literal["medium", "low"],
        explains: tuple[str, ...] | None = None,
    ) -> Finding:
        calls = run_graph(run).calls
        waits = waiting(run)
        return self.finding(
            (calls.start_ns[waits], calls.last_ns[waits]),
            summary=summary,
            ranks=tuple(distinct(calls.rank).tolist()),
            streams=(),
            saving=saving,
            operations=calls.operation[waits],
            evidence=evidence,
            ruled_out=("a straggler: what single ranks delay is taken away before, replayed",),
            advice=advice,
            confidence=confidence,
            explains=explains,
        )

    @staticmethod
    def bad() -> Measures:
        """Two ranks, each in turn 6 ms behind the other."""
        return _run(late_us=6000)

    @staticmethod
    def good() -> Measures:
        """The same, 0.2 ms behind."""
        return _run(late_us=200)


def _run(late_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(12):
        for rank in (0, 1):
            arrival = 2000 + (late_us if step % 2 == rank else 0)
            run.step(rank, step, step * 10_000, 10_000)
            run.kernel(rank, step * 10_000, arrival - 10)
            run.collective(
                rank, "all_reduce", step * 10_000 + arrival, 9900 - arrival, size=1 << 26
            )
    return run.trace()


def _evidence(
    run: Measures, steps: Int64, p_value: float, most: float, min_step_share: float
) -> tuple[Evidence, ...]:
    """``steps`` are shorter by so much, which may be by chance with that probability."""
    part, share = part_of_time(run), share_pct(int(steps.sum()), run)
    return (
        Evidence(f"saved per {part}, median", median(steps), "ns"),
        Evidence(f"chance that it is not in every {part}", p_value, "probability", most),
        Evidence(f"share {of_time(run)}", share, "%", 100 * min_step_share),
        *of_unrecorded(run),
    )


def _when(run: Measures, stalls: tuple[int, ...]) -> str:
    part, rest = ("step", "") if has_steps(run) else ("tenth", " of the run")
    count = run_graph(run).step_ns.size
    return f", in {len(stalls)} of {counted(count, part)}{rest}" if stalls else ""


def _shorter(run: Measures, steps: Int64, stalls: tuple[int, ...]) -> str:
    if stalls:
        return f"these would be {ms(float(steps[list(stalls)].mean()))}"
    if has_steps(run):
        return f"each step would be {ms(float(steps.mean()))}"
    return f"the run would be {ms(int(steps.sum()))}"


def _same(run: Measures, cost_ns: int) -> str | None:
    """In words, that the machine is late rather than the ranks, where it is known."""
    on_cpu = run_graph(run).calls.on_cpu.all()
    if not on_cpu or len(set(hosts(run).values())) > 1 or not same_in_turn(run, cost_ns):
        return None
    return "all run the same operators on the same inputs, which take longer where cores are shared"


def _unknown_cores(run: Measures) -> str | None:
    """In words, that they may have waited for cores, where that is not known."""
    unknown = foreign_load(run) is None and run_graph(run).calls.on_cpu.all()
    if not unknown or cause(run) in LABELLED:
        return None
    return "nothing says how long they waited for CPU cores"


def _of_uneven(its: Inputs) -> str:
    return (
        f"who is late works on more ({named(its.names)}: {ms(its.larger_ns)} in one step), as on "
        f"{beside(*its.example)}: give all ranks work of like size in the same step (sort or "
        "bucket by length), or synchronise less often"
    )


def _advice(run: Measures, cost_ns: int) -> str:
    manifest = run.manifest or {}
    cores, ranks = run.told("cpu").get("count"), manifest.get("world_size")
    one_host = len(manifest.get("hosts") or ()) == 1
    if cores and ranks and one_host and manifest.get("backend") == "gloo" and cores < ranks:
        shared = f"{ranks} ranks share {counted(cores, 'CPU core')}"
        return f"{shared} and wait for their turn: start no more ranks than cores"
    does = cause(run)
    if does in LABELLED:
        return f"{ADVICE[does]}; or synchronise less often"
    if does == "host" and not run_graph(run).calls.on_cpu.any():
        if many := most_kernels(run):
            most, usual = many
            return (
                f"who is late computes more: {most:,} kernels, where {usual:,} are usual, in one "
                "step: give all ranks work of like size in the same step (as many tokens to "
                "generate, sequences of like length), or synchronise less often"
            )
        ranks = distinct(run_graph(run).calls.rank).tolist()
        if 2 * sum(total(starved_when(run, rank)) for rank in ranks) > cost_ns:
            return f"{_OF_HOSTS}; or synchronise less often"
    return "make the ranks' work alike (batches of equal length), or synchronise less often"
