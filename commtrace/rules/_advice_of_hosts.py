"""What to do about hosts that delay the others, and where in the program they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import distinct
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.busy import host_busy
from commtrace.causal.work.cores import Processor, processor
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.looks import Longer, longer_at
from commtrace.intervals import total, union
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import starved_when
from commtrace.metrics.run.host_speed import slower_operators
from commtrace.metrics.run.object_collectives import carry_objects
from commtrace.metrics.run.whole import has_steps
from commtrace.rules._slow_copies import of_copies
from commtrace.rules._stalls import SAVE, at_line, known_work
from commtrace.units import about, clean, duration, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["ANYTHING", "of_host", "of_own_copies", "where"]

ANYTHING = "look at data loading, logging, file systems and other processes there"
"""What to do about a host of which nothing is known."""
_SLOW_HOST = (
    "look at the CPU's clock rate (governor, heat), at the cores and memory in use (numactl "
    "--cpunodebind --membind), and at other processes there"
)
_WORKED = 0.5  # of the time without operators: where its process ran so much more than others'
_WAITED = 0.2
_IN_PYTHON = (
    "its process computed meanwhile, outside of torch: look at Python there, as parsing, "
    "tokenising, augmenting or logging; do that beforehand, in workers, or share it"
)
_PICKLES = (
    "before it sends Python objects it pickles them: send tensors in their place, and what does "
    "not change only once; if they are small, look at Python there"
)
_WAITING = (
    "its process waited meanwhile and took no processor time: look at files, network, "
    "subprocesses and locks there, and do it in the background"
)
_MUCH = 0.25  # of the saving
_SAVES = 0.1  # of the time without operators: what is beside a save belongs to it, as fsync does


def where(culprit: Culprit, run: Measures) -> str:
    """At which line of the program they are longer than the others, if that is much of it.

    Not of what a label or the sizes of inputs tell better.
    """
    on_cpu = bool(run_graph(run).calls.on_cpu[culprit.call])
    known = culprit.cause in ("checkpoint", "garbage-collection")
    known |= isinstance(culprit.more, Inputs)
    on_host = culprit.cause not in ("compute", "copy", None) or on_cpu
    there = _mostly_at(culprit, run) if on_host and not known else None
    if there is None:
        return ""
    took = _how_long(culprit, run, there)
    return f"at {clean(there.line)}{f', {took} longer there' if took else ''}"


def _how_long(culprit: Culprit, run: Measures, there: Longer) -> str:
    """How much longer they are at a line; empty where they stall and too few looks tell."""
    if not has_steps(run) or _in_all_steps(culprit):
        return _in_a_step(culprit, run, there.more_ns, about)
    then = longer_at(run, culprit.ranks, culprit.spikes)
    if then is None or then.function != there.function:
        return ""
    return _in_a_step(culprit, run, then.more_ns, about)


def _in_a_step(
    culprit: Culprit, run: Measures, time_ns: float, said: Callable[[float], str] = ms
) -> str:
    """A time of all steps in words: of each, or of each in which it stalls."""
    if not has_steps(run):
        return said(time_ns)
    if _in_all_steps(culprit):
        return f"{said(time_ns / run_graph(run).step_ns.size)} a step"
    return f"{said(time_ns / len(culprit.spikes))} in such a step"


def _in_all_steps(culprit: Culprit) -> bool:
    return culprit.persistent or not culprit.spikes


def _mostly_at(culprit: Culprit, run: Measures) -> Longer | None:
    """The line that its ranks are at longer than others, if that is much of what it costs."""
    there = None if culprit.shared else longer_at(run, culprit.ranks)
    return there if there is not None and there.more_ns >= _MUCH * culprit.on_top_ns else None


def of_own_copies(culprit: Culprit, run: Measures) -> str:
    """What to do about its copies, and where in the program its host is meanwhile."""
    rank = culprit.ranks[0]
    copies = rows_of_rank(run, "copies", rank)
    when = union(*copies.when())
    return at_line(run, rank, when, of_copies(run, culprit.ranks))


def of_host(culprit: Culprit, run: Measures) -> str:
    """What to do about a host without operators, as far as it is known what it did then."""
    if not run_graph(run).calls.on_cpu.any():
        rank = culprit.ranks[0]
        when = starved_when(run, rank)
        if slow := _of_slow_host(culprit, run):
            return slow
        return at_line(run, rank, when, known_work(run, rank, when) or ANYTHING)
    parts = culprit.parts_ns
    if parts["checkpoint"] > _SAVES * parts["host"]:
        saves = _in_a_step(culprit, run, parts["checkpoint"] / len(culprit.ranks))
        return f"look at what is done beside saving a checkpoint, which takes {saves}: {SAVE}"
    took, there = processor(run, culprit.ranks), _mostly_at(culprit, run)
    if took is None:
        return ANYTHING
    worked = took.more_ns * len(culprit.ranks) - parts["compute"]
    runs = there is not None and there.runs > _WORKED  # whatever the others' processes take
    if runs or worked > _WORKED * parts["host"]:
        pickles = _sends_objects(culprit, run) and not _is_elsewhere(culprit, run, there)
        return _PICKLES if pickles else _IN_PYTHON
    waits = worked < _WAITED * parts["host"] and not _ran_much(culprit, run, took)
    return _WAITING if waits else ANYTHING


def _ran_much(culprit: Culprit, run: Measures, took: Processor) -> bool:
    """Whether its processes ran for as long beside operators, be it less than the others'.

    As a server's does, whose workers compute.
    """
    operators = sum(total(host_busy(run, rank)) for rank in culprit.ranks)
    beside = took.all_ns * len(culprit.ranks) - operators
    return beside > culprit.parts_ns["host"]


def _of_slow_host(culprit: Culprit, run: Measures) -> str | None:
    """What to do if its hosts take longer for each operator than the others', else None."""
    calls = run_graph(run).calls
    there = distinct(calls.rank[calls.place == calls.place[culprit.call]])
    others = there[~np.isin(there, culprit.ranks)].tolist()
    its = slower_operators(run, culprit.ranks, tuple(others))
    if its is None:
        return None
    time, usual = (duration(round(each)) for each in (its.time_ns, its.usual_ns))
    return (
        f"nearly all operators take the host longer than the others', {its.times:.2f} times in the "
        f"median ({clean(its.name, 40)}: {time}, not {usual}): {_SLOW_HOST}"
    )


def _is_elsewhere(culprit: Culprit, run: Measures, there: Longer | None) -> bool:
    """Whether it is longer at another line than those that call what the others await."""
    calls = run_graph(run).calls
    rows = calls.row[calls.place == calls.place[culprit.call]]
    lines = run.rows("collectives").coded("called_at").take(rows).occurring()
    return there is not None and bool(lines) and there.line not in lines


def _sends_objects(culprit: Culprit, run: Measures) -> bool:
    """Whether others await it mostly as the root of operations that carry Python objects."""
    calls = run_graph(run).calls
    there = (calls.place == calls.place[culprit.call]) & np.isin(calls.rank, culprit.ranks)
    carries = carry_objects(run, calls.operation[there].astype(np.int64))
    return culprit.waits.mostly == "root" and carries
