"""Sends of gloo that move their bytes within the call."""

from __future__ import annotations

import numpy as np
import pytest

from commtrace.arrays import Int64
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.edits.run_edits import as_measured, needing_nobody
from commtrace.causal.run.builder import LAUNCH
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import own_work
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

MS = 1_000_000
STEPS = 8
WORK_US, CALL_US, SENDS_US, WAITS_US = 5_000, 20, 3_000, 500


def exchange(in_call_us: float) -> Measures:
    """Both ranks send and receive; the first sends at once, the second is in its call so long."""
    run, at = Tiny(2, backend="gloo"), 0.0
    for step in range(STEPS):
        begin, end = at, at + WORK_US + CALL_US + in_call_us + 100 + WAITS_US
        for rank, (op, call_us) in enumerate((("recv", CALL_US), ("send", in_call_us))):
            run.op(rank, at, WORK_US + 10 * (rank + step) % 30)
            run.op(rank, at + WORK_US, call_us, name="c10d::" + op, kind="communication")
            run.gap(rank, at + WORK_US, call_us + 10)
            run.op(rank, at + WORK_US + call_us + 10, 90)
            waits = at + WORK_US + call_us + 100
            run.gap(rank, waits, end - waits)
            message(run, rank, op, step, at + WORK_US, end)
            run.step(rank, step, begin, end - begin)
        at = end
    return run.trace()


def message(run: Tiny, rank: int, op: str, step: int, call_us: float, end_us: float) -> None:
    """One that is on its way from just after its call until just before the end."""
    run.collective(
        rank,
        op,
        call_us + 5,
        end_us - 5 - (call_us + 5),
        size=1 << 20,
        step=step,
        asynchronous=1,
        peer=1 - rank,
        thread=1,
        stream=50,
        launch_ns=BASE_NS + round(call_us * 1e3),
    )


def in_calls(run: Measures) -> Int64:
    its = run_graph(run)
    within = (its.graph.kind == LAUNCH) & (its.call_of[its.graph.target[:]] < 0)
    return its.graph.lag_ns[within]


def test_what_moves_bytes_within_its_call_is_neither_late_nor_idle() -> None:
    run = exchange(SENDS_US)
    own = own_work(run).own_ns.sum(axis=1)
    rank = run_graph(run).calls.rank
    assert own[rank == 1].sum() == pytest.approx(own[rank == 0].sum(), rel=0.01)
    assert culprits(run, 0.05).found == ()


def test_the_time_within_is_known_for_each_call_and_goes_with_it() -> None:
    run = exchange(SENDS_US)
    lag = in_calls(run)
    assert np.sort(lag).tolist() == [CALL_US * 1_000] * STEPS + [SENDS_US * 1_000] * STEPS
    sends = run_graph(run).calls.is_send
    left = needing_nobody(run, sends, as_measured(run))
    within = run_graph(run).graph.kind == LAUNCH
    assert left[within].sum() == as_measured(run)[within].sum() - _of_sends(run)


def _of_sends(run: Measures) -> int:
    its = run_graph(run)
    starts = np.flatnonzero(its.graph.kind == LAUNCH)
    call = its.call_of[its.graph.target[starts]]
    mine = starts[(call >= 0) & its.calls.is_send[call]]
    called = np.isin(its.graph.source[starts], its.graph.source[mine])
    return int(its.graph.lag_ns[starts[called]].sum())


def test_a_call_has_returned_when_the_next_begins() -> None:
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        at = step * (WORK_US + 2 * SENDS_US + WAITS_US)
        end = at + WORK_US + 2 * SENDS_US + WAITS_US
        for rank, op in enumerate(("recv", "send")):
            run.op(rank, at, WORK_US)
            for call in (at + WORK_US, at + WORK_US + SENDS_US):
                run.op(rank, call, SENDS_US, name="c10d::" + op, kind="communication")
                message(run, rank, op, step, call, end)
            run.op(rank, end - WAITS_US, 90)
            run.gap(rank, end - WAITS_US + 90, WAITS_US - 90)
            run.step(rank, step, at, end - at)
    assert in_calls(run.trace()).tolist() == [SENDS_US * 1_000] * (2 * 2 * STEPS)
