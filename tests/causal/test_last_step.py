"""What ranks do behind the last operation of the last step counts as that of others does."""

from __future__ import annotations

from itertools import product

import pytest

from commtrace.causal.blame.culprits import culprits
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.rules.pipeline_bubble import PipelineBubble
from commtrace.synthetic import BASE_NS, Tiny

STEPS, LOGS_US, LENGTH_US = 4, 3_000, 5_000


def logging(*, recorded: bool = True) -> Measures:
    """Both compute 1 ms, all_reduce for 1 ms and wait for it; then rank 0's host logs for 3 ms."""
    run = Tiny(ranks=2)
    for step, rank in product(range(STEPS), (0, 1)):
        done = step * LENGTH_US + 2_000
        begin = done - 2_000 - (LOGS_US if rank and step else 0)
        host = {"launch_ns": BASE_NS + 1000 * (begin + 5)}
        run.kernel(rank, begin + 10, 990, **host)
        took = done - begin - 1_000
        run.collective(rank, "all_reduce", begin + 1_000, took, size=1 << 20, **host)
        if recorded:
            run.blocking_call(rank, "cudaStreamSynchronize", begin + 20, done - begin - 20)
        run.step(rank, step, begin, done - begin + (0 if rank else LOGS_US))
    return run.trace()


def test_what_a_host_does_at_the_end_of_every_step_is_saved_in_every_step() -> None:
    straggler = diagnose(logging(), select=["straggler"]).findings[0]
    assert straggler.ranks == (0,)
    assert straggler.summary.startswith("rank 0 delays every step by 2.98 ms, launching")
    assert straggler.cost_ns == pytest.approx(STEPS * LOGS_US * 1e3, rel=0.01)


def test_the_last_step_ends_as_the_others_do() -> None:
    steps_us = run_graph(logging()).step_ns / 1e3
    assert steps_us.sum() == STEPS * LENGTH_US
    assert steps_us.tolist() == [2_000, LENGTH_US, LENGTH_US, LENGTH_US + LOGS_US]


def test_a_host_whose_waits_the_trace_lacks_may_wait_to_the_end_of_the_last_step() -> None:
    assert run_graph(logging(recorded=False)).step_ns.sum() == 1e3 * (STEPS * LENGTH_US - LOGS_US)


def test_work_whose_end_alone_is_earlier_delays_nobody() -> None:
    """The last micro-batch of a pipeline's second stage is behind all messages of the run."""
    assert not culprits(PipelineBubble.bad(), 0.05).found
