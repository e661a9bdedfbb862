"""Asynchronous calls on CPUs that are waited for before the work that could hide them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes
from commtrace.causal.rank.moments import Moments
from commtrace.causal.run.builder import WAIT
from commtrace.causal.run.calls import Calls
from commtrace.causal.run.run_graph import run_graph
from commtrace.comms import AUTOGRAD, DDP_FORWARD
from commtrace.measures import measure
from commtrace.metrics.run.module_buffers import of_buffers
from commtrace.metrics.run.run_clock import on_run
from commtrace.metrics.run.whole import profiler_steps

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["EarlyWaits", "early_waits"]

_AT_ONCE = 0.2  # of an operation's time: what may run before the wait
_AT_ONCE_NS = 200_000
_FAR = np.iinfo(np.int64).max
_OF_PARAMETER = "AccumulateGrad"
_FUNCTIONAL = "_c10d_functional"


class EarlyWaits(Struct, frozen=True, eq=False):
    """The asynchronous calls that their thread waited for, ``call`` of the graph's.

    ``early`` are those behind whose call next to nothing ran before the wait; ``blocked_ns`` is how
    long it waited. ``behind_ns`` is what the thread did behind it, until it called again, or its
    step or its backward pass was over. ``gradients`` are of a parameter's hook: the rest of the
    backward pass needs no result of theirs.
    """

    call: Int64
    early: Bool
    blocked_ns: Int64
    behind_ns: Int64
    gradients: Bool


@measure
def early_waits(run: Measures) -> EarlyWaits:
    """The waits that the program makes itself: none of DDP's, and none at a result's first use.

    CannotLook where the run has no graph.
    """
    its = run_graph(run)
    calls, graph = its.calls, its.graph
    joins, call = its.joins
    mine = calls.on_cpu[call] & (calls.asynchronous[call] == 1)
    call, resume = call[mine], graph.target[joins[mine]]
    waits = np.flatnonzero(graph.kind == WAIT)
    begin_ns = graph.time_ns[:].copy()
    begin_ns[graph.target[waits]] = graph.time_ns[graph.source[waits]]
    hosts = _Hosts(run, calls)
    called_ns, resumed_ns = hosts.called_ns(call), graph.time_ns[resume]
    in_backward = hosts.within(hosts.backward, call)
    steps = run.rows("steps")
    ddp_ranks = steps.ints("rank")[steps.coded("label").being(DDP_FORWARD)]
    of_ddp = np.isin(calls.rank[call], ddp_ranks)
    own = ~(in_backward & of_ddp) & ~hosts.within(hosts.functional, call)
    own &= ~of_buffers(run, run.rows("collectives"))[calls.row[call]]
    until_ns = np.minimum(
        hosts.next_call_ns(call, resumed_ns),
        np.where(in_backward, hosts.backward_end_ns(call, resumed_ns), hosts.step_end_ns(call)),
    )
    at_once_ns = np.maximum(_AT_ONCE * (resumed_ns - called_ns), _AT_ONCE_NS)
    return EarlyWaits(
        call[own],
        (begin_ns[resume] - called_ns <= at_once_ns)[own],
        (resumed_ns - begin_ns[resume])[own],
        np.maximum(until_ns - resumed_ns, 0)[own],
        hosts.within(hosts.gradients, call)[own],
    )


class _Hosts:
    """What ran on the threads that call communication, on the run's clock."""

    def __init__(self, run: Measures, calls: Calls) -> None:
        ops = run.rows("ops")
        rank, name = ops.ints("rank"), ops.coded("name")
        self._run, self._calls = run, calls
        place = codes(np.append(calls.rank, rank), np.append(calls.thread, ops.ints("thread")))
        self._thread, self._of = np.split(place, [calls.rank.size])
        self._start_ns = on_run(run, rank, ops.ints("start_ns"))
        self._end_ns = self._start_ns + ops.ints("duration_ns")
        # The numbers of the calls' threads come first.
        calling = self._of <= self._thread.max(initial=-1)
        self.backward = name.where(lambda its: its.startswith(AUTOGRAD)) & calling
        self.gradients = self.backward & name.where(lambda its: _OF_PARAMETER in its)
        self.functional = name.where(lambda its: its.startswith(_FUNCTIONAL)) & calling
        computes = ops.coded("kind").being("compute")
        self._others, self._calling = ~self.backward & computes & calling, ~computes & calling

    def within(self, which: Bool, call: Int64) -> Bool:
        """Whether some calls were made by some of the operators."""
        rows = np.flatnonzero(which)
        moments = Moments(self._of[rows], self._start_ns[rows])
        at = moments.last(self._thread[call], self._calls.launch_ns[call])
        return np.append(self._end_ns[rows], NULL)[at] > self._calls.launch_ns[call]

    def called_ns(self, call: Int64) -> Int64:
        """When each call was made, and its thread went on: a scarce core comes late to it."""
        rows = np.flatnonzero(self._calling)
        launch_ns = self._calls.launch_ns[call]
        at = Moments(self._of[rows], self._start_ns[rows]).last(self._thread[call], launch_ns)
        called_ns: Int64 = np.maximum(np.append(self._end_ns[rows], NULL)[at], launch_ns)
        return called_ns

    def backward_end_ns(self, call: Int64, after_ns: Int64) -> Int64:
        """When a call's thread began something else than the backward pass, after a time."""
        rows = np.flatnonzero(self._others)
        at = Moments(self._of[rows], self._start_ns[rows]).next(self._thread[call], after_ns)
        return np.append(self._start_ns[rows], _FAR)[at]

    def next_call_ns(self, call: Int64, after_ns: Int64) -> Int64:
        """When a call's thread called the next operation, after a time."""
        launch_ns = self._calls.launch_ns
        at = Moments(self._thread, launch_ns).next(self._thread[call], after_ns)
        return np.append(launch_ns, _FAR)[at]

    def step_end_ns(self, call: Int64) -> Int64:
        """When the step of a call ended on its rank."""
        steps = profiler_steps(self._run)
        rank, end = steps.ints("rank"), steps.ints("start_ns") + steps.ints("duration_ns")
        known = zip(rank.tolist(), steps.ints("step").tolist(), strict=True)
        last = dict(zip(known, on_run(self._run, rank, end).tolist(), strict=True))
        asked = (its[call].tolist() for its in (self._calls.rank, self._calls.step))
        return np.asarray([last.get(its, _FAR) for its in zip(*asked, strict=True)], np.int64)
