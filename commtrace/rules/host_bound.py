"""Every rank runs Python of the program's own, and no operator, collects garbage, or saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import Float64, Int64
from commtrace.causal.alike import Alike, alike, without
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import saving
from commtrace.causal.work.cores import taken_cores
from commtrace.causal.work.looks import Looks, looks
from commtrace.causal.work.segments import own_parts
from commtrace.diagnosis import CannotLook, Cause, Evidence, Finding
from commtrace.metrics.run.whole import (
    of_time,
    share_pct,
    worth_reporting,
)
from commtrace.rules._each_step import how_long
from commtrace.rules._rule import Rule
from commtrace.rules._stalls import SAVE_BY_ALL
from commtrace.synthetic import Tiny
from commtrace.units import clean, counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_MOSTLY = 0.6  # of the time at a function, in which others may have its core
_FEWER_OBJECTS = (
    "leave gc.collect() out of the steps, if the program calls it; else make fewer Python objects "
    "in each, as by sending none, or call gc.freeze() after setting up and gc.disable(), then "
    "gc.collect() on all ranks in the same steps, seldom"
)
_LABELLED: dict[Cause, tuple[str, str]] = {
    "garbage-collection": ("collect garbage", _FEWER_OBJECTS),
    "checkpoint": ("save checkpoints", SAVE_BY_ALL),
}
"""What all may do that has a label: in words, and what to do."""
_ADVICE = (
    "do it beforehand or in a loader's workers, with tensors' operators in place of loops, or less "
    "often"
)
_NAMED = 3
_PART = 0.1  # of all of it: less is not named


class HostBound(Rule, frozen=True):
    """Every rank runs Python of the program's own, and no operator, collects garbage, or saves.

    What it detects
        Functions of the program in which ranks' threads compute outside of torch, as
        ``commtrace record`` sees by looking at them every 10 ms: those in which the thread runs for
        three fifths of the time at least, and neither an operator nor what has a loader's, a
        checkpoint's or the garbage collector's label. The run is replayed without that time, as far
        as the median rank takes as long in the same step: what one takes longer than the others is
        a straggler's. It fires where this saves at least ``min_step_share`` of the steps' time.

        Garbage that all ranks collect, and checkpoints that all save, are found in the same way,
        by their labels, on GPUs as well.

    Why it costs time
        Python runs on one core, and what waits for it are operators and communication of all ranks.
        As all take as long, nobody waits for another.

    What to do
        Prepare data beforehand or in a loader's workers, use tensors' operators in place of loops,
        log and compute metrics less often.

    Blind spots
        Only recordings of commtrace's have such looks, which count only where operators run on
        CPUs: on GPUs see ``launch-gap``. Python may be what the program is for, as an environment
        or a search: less of it counts when findings are ordered.
    """

    explains: ClassVar[tuple[str, ...]] = ("launch-gap",)
    may_be_needed: ClassVar[bool] = True

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding of each kind, of all ranks that do so."""
        for cause, (does, advice) in _LABELLED.items():
            its = alike(run, own_parts(run)[cause])
            for found in self._findings(run, its, cause, does, advice):
                yield replace(found, by_itself=True)  # what it is says that it can be done without
        if not run_graph(run).calls.on_cpu.all():
            raise CannotLook("needs ranks that compute on CPUs")
        seen = looks(run)
        if seen is None:
            raise CannotLook(
                "needs to know at which line ranks are: commtrace record looks every 10 ms"
            )
        functions = _in_python(run, seen)
        its, where = _together(run, seen, functions), _where(run, seen, functions)
        yield from self._findings(run, its, "host", "run Python and no operator", _ADVICE, where)

    def _findings(
        self, run: Measures, its: Alike, cause: Cause, does: str, advice: str, where: str = ""
    ) -> Iterator[Finding]:
        """One finding, if it saves enough, also once those are mended who delay the run."""
        if not its.steps_ns.any():
            return
        gain = saving(run, lambda lag_ns: without(run, its, lag_ns), 0, self.min_step_share)
        if not worth_reporting(min(gain.cost_ns, gain.left_ns), run, self.min_step_share):
            return
        each_ns, ranks = its.steps_ns.mean(axis=0), its.who
        who = "all ranks" if len(ranks) == its.ranks.size else counted(len(ranks), "rank")
        taken, graph = taken_cores(run), run_graph(run)
        yield self.finding(
            (graph.calls.start_ns, graph.calls.last_ns),
            summary=f"{who} {does} {how_long(run, each_ns)}{where}"
            + (f" (not sure: {taken})" if taken else ""),
            ranks=ranks,
            streams=(),
            saving=gain,
            cause=cause,
            evidence=(
                Evidence("so long does the mean rank", float(each_ns.sum()), "ns"),
                Evidence(
                    f"share {of_time(run)}",
                    share_pct(gain.cost_ns, run),
                    "%",
                    100 * self.min_step_share,
                ),
            ),
            ruled_out=("a straggler: only what the median rank takes, too, is counted",),
            advice=advice,
            confidence="low" if taken else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """Both ranks are in a loop of their program for 30 ms of each step of 100."""
        return _run(loops_us=30_000)

    @staticmethod
    def good() -> Measures:
        """The same for 3 ms."""
        return _run(loops_us=3_000)


def _in_python(run: Measures, seen: Looks) -> Int64:
    """The functions that compute outside of torch, the longest first."""
    every = seen.by_rank(run, seen.time_ns, seen.function).sum(axis=0)
    python = seen.by_rank(run, seen.python_ns, seen.function).sum(axis=0)
    which = np.flatnonzero((python > 0) & (python >= _MOSTLY * every))
    longest: Int64 = which[np.argsort(-python[which], kind="stable")]
    return longest


def _together(run: Measures, seen: Looks, functions: Int64) -> Alike:
    """What ranks take for these, as far as they take alike."""
    there = np.isin(seen.function, functions)
    calls = run_graph(run).calls.rank.size
    part = np.bincount(seen.call[there], seen.python_ns[there], calls).astype(np.int64)
    return alike(run, np.minimum(part, own_parts(run)["host"]))


def _where(run: Measures, seen: Looks, functions: Int64) -> str:
    """The lines where that is, with what each takes a step."""
    steps = max(run_graph(run).step_ns.size, 1)
    python: Float64 = (
        seen.by_rank(run, seen.python_ns, seen.function).mean(axis=0)[functions] / steps
    )
    named = [
        f"{clean(_longest_line(run, seen.take(seen.function == number)))} ({ms(time)} a step)"
        for number, time in zip(functions.tolist(), python.tolist(), strict=True)
        if time >= _PART * python.sum()
    ]
    return f", mostly at {', '.join(named[:_NAMED])}"


def _longest_line(run: Measures, seen: Looks) -> str:
    """The line that computes for longest."""
    return seen.lines[int(seen.by_rank(run, seen.python_ns, seen.line).sum(axis=0).argmax())]


def _run(loops_us: float) -> Measures:
    run = Tiny(ranks=2, backend="gloo")
    every = 100_000
    for step in range(6):
        start = step * every
        for rank in (0, 1):
            run.step(rank, step, start, every)
            run.gap(rank, start, loops_us)
            for look in range(3000, round(loops_us) + 1, 3000):
                run.look(rank, start + look - 1, "train.py:12 in tokenize", 3000)
            call = start + every - 2000
            run.op(rank, start + loops_us, call - start - loops_us)
            run.gap(rank, call, 1900)
            same = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", call, 1900, size=1 << 20, **same)
    return run.trace()
