"""Calls that are not made: their hosts' part of it, too."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from commtrace.causal.edits.not_issued import not_issued
from commtrace.causal.edits.run_edits import as_measured, needing_nobody, step_ns
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.whatif import whatif
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

STEP_US = 4_000


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def gathering(*, copied_out: int = 4, twice: bool = False) -> Tiny:
    """Each step: four all_gathers; for each the host needs 200 µs, and 100 to copy out, then 300.

    The GPU gathers for 50 µs and computes for 100: it waits for its host.
    """
    run = Tiny(ranks=2)
    for step in range(6):
        for rank in range(2):
            begun = STEP_US * step
            run.step(rank, step, begun, STEP_US)
            for unit in range(4):
                now = begun + 800 * unit
                run.step(rank, step, now, 200, label=f"FSDP::all_gather (layers.{unit})")
                called = {"size": 1 << 24, "launch_ns": at(now + 190)}
                run.collective(rank, "all_gather", now + 195, 50, **called)
                if twice:  # another call within the same range
                    more = {"size": 1 << 20, "launch_ns": at(now + 150)}
                    run.collective(rank, "all_reduce", now + 155, 20, **more)
                if unit < copied_out:
                    label = f"FSDP::all_gather_copy_out (layers.{unit})"
                    run.step(rank, step, now + 205, 100, label=label)
                run.kernel(rank, now + 305, 20, launch_ns=at(now + 300))
                run.kernel(rank, now + 605, 100, launch_ns=at(now + 600))
            run.blocking_call(rank, "cudaDeviceSynchronize", begun + 3_300, 20)
    return run


def saved_us(run: Measures, which: slice) -> tuple[float, float]:
    """A step less what is moved, and less what hosts do for it, too."""
    calls, measured = run_graph(run).calls, as_measured(run)
    order = np.argsort(calls.launch_ns + 0 * calls.rank, kind="stable")
    place = np.empty(order.size, dtype=np.int64)
    place[order] = np.arange(order.size) // 2 % 4
    gone = np.isin(place, np.arange(4)[which])
    edits = [edit(run, gone, measured) for edit in (needing_nobody, not_issued)]
    steps = np.median(step_ns(run, [measured, *edits]), axis=0)
    return (steps[0] - steps[1]) / 1e3, (steps[0] - steps[2]) / 1e3


def test_its_host_does_nothing_for_them() -> None:
    moved, all_of_it = saved_us(gathering().trace(), slice(1, 4))
    assert moved == pytest.approx(0, abs=60)
    assert all_of_it == pytest.approx(3 * 300, rel=0.1)


def test_a_range_in_which_another_call_is_made_stays() -> None:
    run = gathering(twice=True).trace()
    calls, measured = run_graph(run).calls, as_measured(run)
    gone = run.rows("collectives", calls.row).coded("op").being("all_reduce")
    steps = step_ns(run, [needing_nobody(run, gone, measured), not_issued(run, gone, measured)])
    assert (steps[:, 0] == steps[:, 1]).all()


def test_where_not_all_are_copied_out_nobody_knows_which() -> None:
    _, all_of_it = saved_us(gathering(copied_out=3).trace(), slice(1, 4))
    assert all_of_it == pytest.approx(3 * 200, rel=0.1)


def test_what_is_done_before_a_pass_to_gather_what_is_there_is_not_done() -> None:
    run = gathering()
    for step, rank, unit in product(range(6), range(2), range(4)):
        label = f"FSDP::pre_forward (layers.{unit})"
        run.step(rank, step, STEP_US * step + 800 * unit, 400, label=label)
    _, all_of_it = saved_us(run.trace(), slice(1, 4))
    assert all_of_it == pytest.approx(3 * 400, rel=0.1)


def ends_with_its_gpu(run: Tiny, rank: int, begun: float) -> None:
    """Behind the first millisecond of a step its host launches once more, and waits for that."""
    run.kernel(rank, begun + 1_005, 900, launch_ns=at(begun + 1_000))
    run.blocking_call(rank, "cudaDeviceSynchronize", begun + 1_010, 900)


@pytest.mark.parametrize("between", [False, True])
def test_hosts_take_no_time_from_one_that_is_not_launched_to_the_next(between: bool) -> None:
    """Ten broadcasts a step, one every 100 µs; the GPU, which needs 10 for each, waits for them."""
    run = Tiny(ranks=2)
    for step, rank in product(range(6), range(2)):
        begun = STEP_US * step
        run.step(rank, step, begun, STEP_US)
        for part in range(10):
            now = begun + 100 * part
            launched = {"launch_ns": at(now)}
            run.collective(rank, "broadcast", now + 5, 10, size=1 << 10, root=0, **launched)
            if between:
                run.kernel(rank, now + 50, 10, launch_ns=at(now + 45))
        ends_with_its_gpu(run, rank, begun)
    gone = np.ones(2 * 6 * 10, dtype=np.bool_)
    its, measured = run.trace(), as_measured(run.trace())
    edits = [needing_nobody(its, gone, measured), not_issued(its, gone, measured)]
    steps = np.median(step_ns(its, [measured, *edits]), axis=0) / 1e3
    assert steps[0] - steps[1] == pytest.approx(0, abs=60)
    assert steps[0] - steps[2] == pytest.approx(0 if between else 900, abs=60)
    (asked,) = whatif(its, ["remove:broadcast"]).edits
    assert asked.step_ns == pytest.approx(1e3 * steps[2], abs=1)


def test_hosts_need_no_time_within_the_operators_that_called_them() -> None:
    """Ten in each step, between kernels that go on: of every 100 µs one takes its host 40."""
    run = Tiny(ranks=2)
    for step, rank in product(range(6), range(2)):
        begun = STEP_US * step
        run.step(rank, step, begun, STEP_US)
        for part in range(10):
            now = begun + 100 * part
            run.op(rank, now, 40, name="c10d::broadcast_", kind="communication")
            launched = {"launch_ns": at(now + 35)}
            run.collective(rank, "broadcast", now + 37, 2, size=1 << 10, root=0, **launched)
            run.kernel(rank, now + 95, 4, launch_ns=at(now + 92))
        ends_with_its_gpu(run, rank, begun)
    gone = np.ones(2 * 6 * 10, dtype=np.bool_)
    its, measured = run.trace(), as_measured(run.trace())
    before, after = np.median(step_ns(its, [measured, not_issued(its, gone, measured)]), axis=0)
    assert (before - after) / 1e3 == pytest.approx(10 * 40, abs=60)
