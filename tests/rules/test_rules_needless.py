"""What is needless, uneven, out of step, cold, or not fit to say: edges and confounders."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.arrays import Int64
from commtrace.comms import OPERATIONS
from commtrace.diagnosis import Finding, Note
from commtrace.measures import Measures
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.metrics.run.unrecorded_work import unrecorded_work
from commtrace.reader import read
from commtrace.rules import diagnose
from commtrace.rules._rule import Rule
from commtrace.rules.latency_bound import LatencyBound
from commtrace.rules.redundant import Redundant
from commtrace.synthetic import BASE_NS, COMMUNICATION, Tiny
from tests.edited import edited

RULES = (
    "cold-start",
    "desync",
    "emulated-operation",
    "redundant",
    "uneven-all-to-all",
    "unfit-trace",
)


def found(trace: Measures, rule: str) -> list[Finding]:
    return list(diagnose(trace, select=[rule]).findings)


def skipped(trace: Measures, rule: str) -> str:
    return diagnose(trace, select=[rule]).skipped.get(rule, "")


# emulated-operation


def test_half_of_an_emulated_reduce_scatter_is_gained() -> None:
    run = Tiny(2, backend="gloo")
    for rank in range(2):
        run.collective(rank, "reduce_scatter", 0, 800, size=1 << 20, executed="all_reduce")
    (finding,) = found(run.trace(), "emulated-operation")
    assert finding.cost_ns == 400_000


@pytest.mark.parametrize(("backend", "another"), [("gloo", False), ("nccl", True)])
def test_on_cpus_there_is_no_other_backend(backend: str, another: bool) -> None:
    run = Tiny(2, backend=backend)
    for rank in range(2):
        run.collective(rank, "reduce_scatter", 0, 800, size=1 << 20, executed="all_reduce")
    (finding,) = found(run.trace(), "emulated-operation")
    assert ("use a backend" in finding.advice) == another


def test_what_an_emulated_operation_waits_for_cores_is_not_its_bytes() -> None:
    run = Tiny(2, backend="gloo")
    for i, took in enumerate((800, 4000, 6000, 800, 5000)):
        for rank in range(2):
            at = i * 7_000
            run.collective(rank, "reduce_scatter", at, took, size=1 << 20, executed="all_reduce")
    (finding,) = found(run.trace(), "emulated-operation")
    assert finding.cost_ns == 5 * 400_000


@pytest.mark.parametrize(
    ("micro_batches", "reduces", "saved_us"),
    [
        (2, 1, 3 * 300),  # gathered four times, for one reduction
        (1, 1, None),  # as FSDP does: for forward, and for backward
        (2, 2, None),  # each micro-batch reduces: that is another finding's
        (2, 0, None),  # an evaluation: nothing says that these are parameters
    ],
)
def test_parameters_are_gathered_once_for_an_update(
    micro_batches: int, reduces: int, saved_us: int | None
) -> None:
    run = Tiny(2)
    for step, rank in product(range(4), range(2)):
        start = at = step * 5000
        run.step(rank, step, start, 5000)
        launched = {"launch_ns": BASE_NS + 1000 * (start + 10)}
        for micro in range(micro_batches):
            for _ in ("forward", "backward"):
                run.collective(rank, "all_gather", at + 100, 298, size=1 << 24, **launched)
                run.kernel(rank, at + 400, 398, **launched)
                at += 700
            if micro >= micro_batches - reduces:
                run.collective(rank, "reduce_scatter", at + 100, 398, size=1 << 24, **launched)
                at += 500
    findings = found(run.trace(), "redundant")
    assert [its.cost_ns for its in findings] == (
        [pytest.approx(4e3 * saved_us, rel=0.02)] if saved_us else []
    )


@pytest.mark.parametrize("apart", [1, 10])
def test_what_is_gathered_behind_an_update_is_needed(apart: int) -> None:
    """As weights that are handed to an engine: then none of the next step's gathers is."""
    run = Tiny(2)
    for step, rank in product(range(4), range(2)):
        at = step * 5000.0
        run.step(rank, apart * step, at, 5000)
        launched = {"launch_ns": BASE_NS + 1000 * (step * 5000 + 10)}
        for op, took in (*4 * [("all_gather", 298)], ("reduce_scatter", 398), ("all_gather", 598)):
            run.collective(rank, op, at + 100, took, size=1 << 24, **launched)
            run.kernel(rank, at + took + 102, 198, **launched)
            at += took + 202
    (finding,) = found(run.trace(), "redundant")
    assert finding.summary.startswith("the same parameters are gathered again")
    assert f"{3 + 3 * 4} operations too many" in finding.summary


def at_once(op: str, *pairs: tuple[int, int], first_us: float = 800, **more: Any) -> Measures:
    """Groups of two ranks that run the same operation at the same times."""
    run = Tiny(8)
    run.groups |= {str(number): pair for number, pair in enumerate(pairs)}
    for number, pair in enumerate(pairs):
        for rank in pair:
            for i in range(6):
                at, took = (i * 2000 + first_us, 800.0) if i else (900.0, first_us)
                run.kernel(rank, at - 900, 900, name="ampere_bf16_s16816gemm_bf16")
                where = {"group": str(number), "stream": 20 + number, **more}
                run.collective(rank, op, at, took, size=64_000_000, **where)
    return run.trace()


APART = ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("rule", "trace", "cost_ns"),
    [
        ("emulated-operation", at_once("reduce_scatter", *APART, executed="all_reduce"), 2_400_000),
        # Of six times 0.8 ms NCCL's least latency of two ranks stays, 7.8 µs.
        ("full-precision-payload", at_once("all_reduce", *APART), 6 * (800_000 - 7_800) // 2),
        ("cold-start", at_once("all_reduce", (0, 1), (0, 1), first_us=50_000), 49_200_000),
    ],
)
def test_what_is_saved_at_the_same_time_is_saved_once(
    rule: str, trace: Measures, cost_ns: int
) -> None:
    (one,) = found(trace, rule)
    assert one.cost_ns == cost_ns


def test_what_moves_no_more_bytes_is_no_loss() -> None:
    run = Tiny(2)
    for rank in range(2):
        run.collective(rank, "all_reduce", 0, 800, size=1 << 20, executed="reduce_scatter")
    assert not found(run.trace(), "emulated-operation")


def test_without_both_names_emulation_cannot_be_seen() -> None:
    run = Tiny(2)
    run.collective(0, "all_reduce", 0, 800, size=1 << 20, executed=None)
    assert "what ran" in skipped(run.trace(), "emulated-operation")


# uneven-all-to-all


def exchange(
    sent: dict[int, int], *, ranks: int | None = None, rotate: bool = False, **tiny: Any
) -> Tiny:
    run = Tiny(len(sent), **tiny)
    for step in range(12):
        for rank in list(sent)[:ranks]:
            mine = sent[(rank + step) % len(sent)] if rotate else sent[rank]
            even = sum(sent.values()) // len(sent)
            run.collective(rank, "all_to_all", step * 1000, 600, in_bytes=mine, out_bytes=even)
    return run


def test_the_busiest_rank_is_the_culprit_and_its_excess_the_gain() -> None:
    (finding,) = found(exchange({0: 100, 1: 300, 2: 200, 3: 200}).trace(), "uneven-all-to-all")
    assert finding.ranks == (1,)
    assert finding.cost_ns == pytest.approx(12 * 600_000 * (1 - 200 / 300), rel=0.01)
    assert finding.confidence == "high"


@pytest.mark.parametrize(("most", "fires"), [(119, False), (125, True)])
def test_a_fifth_more_is_allowed(most: int, fires: bool) -> None:
    trace = exchange({0: most, 1: 200 - most}).trace()
    assert bool(found(trace, "uneven-all-to-all")) == fires


def test_a_busiest_rank_that_changes_is_nobodys_fault() -> None:
    trace = exchange({0: 100, 1: 300, 2: 200, 3: 200}, rotate=True).trace()
    (finding,) = found(trace, "uneven-all-to-all")
    assert finding.ranks == ()


def test_the_mean_of_some_ranks_is_none() -> None:
    some = exchange({0: 100, 1: 300, 2: 200}, ranks=2).trace()
    assert "every rank" in skipped(some, "uneven-all-to-all")


def test_within_one_memory_the_sum_counts() -> None:
    sent = {0: 100, 1: 300}
    trace = exchange(sent, backend="gloo").trace()
    assert "memory" in skipped(trace, "uneven-all-to-all")
    assert found(exchange(sent, backend="gloo", hosts=("a", "b")).trace(), "uneven-all-to-all")


# cold-start


def first_and_later(first: float, later: list[float], *, seq: int | None = 0) -> Measures:
    run = Tiny(2)
    clock = 0.0
    for place, took in enumerate([first, *later]):
        number = None if seq is None else seq + place
        for rank in range(2):
            run.collective(rank, "all_reduce", clock, took, size=1 << 20, seq=number)
        clock += took + 50
    return run.trace()


@pytest.mark.parametrize(
    ("first", "later", "fires"),
    [
        (2500, [1000] * 4, True),
        (1900, [1000] * 4, False),
        (2500, [1000, 1000, 1000, 2600], False),
        (2500, [1000] * 2, False),
    ],
)
def test_a_cold_first_stands_out(first: float, later: list[float], fires: bool) -> None:
    assert bool(found(first_and_later(first, later), "cold-start")) == fires


@pytest.mark.parametrize("seq", [None, 12])
def test_the_windows_first_is_not_the_groups_first(seq: int | None) -> None:
    trace = first_and_later(9000, [1000] * 4, seq=seq)
    needs = "sequence numbers" if seq is None else "all were before what is recorded"
    assert needs in skipped(trace, "cold-start")


def test_without_numbers_only_what_is_far_slower_is_cold() -> None:
    (finding,) = found(first_and_later(21_000, [1000] * 4, seq=None), "cold-start")
    assert finding.confidence == "low"
    assert finding.cost_ns == pytest.approx(20e6, rel=0.01)


@pytest.mark.parametrize(
    ("step", "size", "lacks", "fires"),
    [
        (0, 4096, 2, True),
        (1, 4096, 2, False),  # the group may have done others before
        (0, 1 << 21, 2, False),  # more bytes than what is known to be fast
        (0, 4096, 1, False),  # rank 1, which is not recorded, may have come late
    ],
)
def test_a_groups_only_operation_is_held_against_larger_ones_of_its_ranks(
    step: int, size: int, lacks: int, fires: bool
) -> None:
    """A broadcast of a group of its own takes 50 ms, all_reduces of 1 MB take one each."""
    run = Tiny(2)
    run.groups["own"] = (0, 1)
    for rank in range(2):
        for number in range(2):
            begin = number * 60_000
            run.step(rank, number, begin, 60_000)
            if number == step and rank != lacks:
                own = {"group": "own", "stream": 99, "size": size, "seq": None}
                run.collective(rank, "broadcast", begin + 10, 50_000, **own)
            for place in range(3):
                at = begin + 51_000 + place * 2000
                run.collective(rank, "all_reduce", at, 1000, size=1 << 20, seq=None)
    findings = found(run.trace(), "cold-start")
    assert [one.confidence for one in findings] == ["low"] * fires
    if fires:
        assert findings[0].summary.endswith("50x the 1 ms of others at least as large")
        assert findings[0].cost_ns == pytest.approx(49e6, rel=0.01)


def test_a_long_first_call_on_the_host_is_cold_though_the_kernel_is_not() -> None:
    run = Tiny(2)
    for place in range(5):
        for rank in range(2):
            start = place * 40_000.0
            took = 30_000 if place == 0 else 20
            run.op(rank, start, took, name="c10d::allreduce_", kind="communication")
            launch = start + took - 5
            run.collective(rank, "all_reduce", launch + 5, 500, size=1 << 20)
    (finding,) = found(run.trace(), "cold-start")
    assert finding.cost_ns == pytest.approx(30e6, rel=0.01)


def test_each_pair_connects_once() -> None:
    run = Tiny(3)
    for peer in (1, 2):
        for place in range(4):
            start, took = peer * 100_000 + place * 2000, 20_000 if place == 0 else 100
            start += 20_000 if place else 0
            seq = (peer - 1) * 4 + place
            run.collective(0, "send", start, took, size=1 << 20, peer=peer, seq=seq)
            run.collective(peer, "recv", start, took, size=1 << 20, peer=0, seq=seq)
    (finding,) = found(run.trace(), "cold-start")
    assert "first send of 2 pairs" in finding.summary


# redundant


def training(*, update: bool = False, parallel: bool = False, ranges: bool = False) -> Measures:
    run = Tiny(2)
    for rank in range(2):
        run.step(rank, 0, 0, 10_000)
        for micro in range(4):
            start = micro * 1000
            run.step(rank, 0, start, 100, label="DistributedDataParallel.forward")
            if ranges:
                run.step(rank, 0, start - 5, 900, label="train")
            if parallel:
                run.collective(rank, "all_reduce", start + 20, 30, size=1 << 10)
            run.collective(rank, "all_reduce", start + 300, 500, size=1 << 24)
            if update:
                run.step(rank, 0, start + 850, 50, label="Optimizer.step#SGD.step")
    return run.trace()


def test_all_but_the_last_micro_batchs_reductions_are_needless() -> None:
    (finding,) = found(training(), "redundant")
    assert finding.cost_ns == pytest.approx(3 * 500_000, rel=0.04)


@pytest.mark.parametrize("confounder", ["update", "parallel", "ranges"])
def test_what_is_no_accumulation(confounder: str) -> None:
    assert not found(training(**{confounder: True}), "redundant")


@pytest.mark.parametrize(
    ("labels", "updates", "needless"),
    [("aaaa", 1, 3), ("abab", 1, 2), ("ab", 1, 0), ("aa", 2, 0)],
)
def test_micro_batches_may_have_a_range_each_where_updates_are_marked(
    labels: str, updates: int, needless: int
) -> None:
    """Two labels are two models, the last pass of each the one whose sum counts; of one label
    they are two if they have an update each."""
    run = Tiny(2)
    for rank in range(2):
        run.step(rank, 0, 0, 10_000)
        for micro, label in enumerate(labels):
            start = micro * 1000
            run.step(rank, 0, start + 5, 100, label="DistributedDataParallel.forward")
            run.step(rank, 0, start, 900, label=label)
            run.collective(rank, "all_reduce", start + 300, 500, size=1 << 24)
        for update in range(updates):
            run.step(rank, 0, 4000 + 60 * update, 50, label="Optimizer.step#SGD.step")
    found_of = found(run.trace(), "redundant")
    assert [its.cost_ns for its in found_of] == [
        pytest.approx(needless * 500_000, rel=0.04)
    ] * bool(needless)


@pytest.mark.parametrize(
    ("steps", "updates", "fires"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_micro_batches_of_traces_without_shapes(steps: bool, updates: bool, fires: bool) -> None:
    """Also where only the optimizer marks steps, and a label of the program's is on forward."""
    run = Tiny(2)
    for rank, step in product(range(2), range(3)):
        begin = step * 5000
        if steps:
            run.step(rank, step, begin, 5000)
        for micro in range(4):
            start = begin + micro * 1000
            run.step(rank, step, start - 5, 110, label="forward")
            run.step(rank, step, start, 100, label="DistributedDataParallel.forward")
            outside = {} if steps else {"step": None}
            run.collective(rank, "all_reduce", start + 300, 500, **outside)
        if updates:
            run.step(rank, step, begin + 4000, 50, label="Optimizer.step#SGD.step")
    if not steps:
        for row in run.rows["steps"]:
            row["step"] = None
    findings = [its for its in found(run.trace(), "redundant") if "micro-batch" in its.summary]
    assert [its.cost_ns for its in findings] == [pytest.approx(4.5e6, rel=0.04)] * fires


def test_an_update_that_the_recording_cuts_off_is_no_other_models() -> None:
    """Of a run without steps the last backward has reduced but its first bucket."""
    run = Tiny(2)
    for rank, number in product(range(2), range(6)):
        start = number * 1000
        run.step(rank, 0, start, 100, label="DistributedDataParallel.forward")
        for bucket in range(1 if number == 5 else 2):
            size = 1 << (24 - bucket)
            run.collective(
                rank, "all_reduce", start + 300 + 250 * bucket, 200, size=size, step=None
            )
        if number < 5:
            run.step(rank, 0, start + 850, 50, label="Optimizer.step#SGD.step")
    for row in run.rows["steps"]:
        row["step"] = None
    assert not found(run.trace(), "redundant")


def unmarked(
    *,
    forward: int | None = None,
    size: int = 1 << 24,
    updates: int = 1,
    once: bool = False,
    op: str = "all_reduce",
    fsdp: bool = False,
) -> Measures:
    """Four micro-batches in each step of a module that marks none: backward has its own thread.

    ``forward`` all_reduces so many bytes in each forward pass, too; ``once`` is one long backward
    pass; ``updates`` is how many micro-batches are in each. ``op`` reduces, and ``fsdp`` runs.
    """
    run = Tiny(2)
    for step, rank in product(range(2), range(2)):
        run.step(rank, step, step * 5000, 5000)
        for micro in range(4):
            start, called = step * 5000 + micro * 1000 + 100, step * 5000 + micro * 20
            here, there = ({"launch_ns": BASE_NS + 1000 * (called + at)} for at in (2, 8))
            run.kernel(rank, start, 298, thread=2 if once else 1, **here)
            if forward:
                run.collective(rank, "all_reduce", start + 100, 30, size=forward, **here)
            run.collective(rank, op, start + 300, 698, size=size, **there)
            run.rows["kernels"][-1]["thread"] = 2
            if fsdp:
                run.step(rank, step, called, 2, label="FullyShardedDataParallel.forward")
            if updates and micro % updates == updates - 1:
                run.step(rank, step, called + 10, 5, label="Optimizer.step#SGD.step")
    return run.trace()


def test_threads_tell_the_passes_of_modules_that_mark_none() -> None:
    (finding,) = found(unmarked(updates=4), "redundant")
    assert finding.summary.startswith("gradients are reduced after every micro-batch: 6 operations")
    assert finding.cost_ns == pytest.approx(6 * 700_000, rel=0.02)
    assert "no_sync" in finding.advice


def test_threads_tell_the_passes_of_fsdp_that_marks_none() -> None:
    run = unmarked(updates=4, op="reduce_scatter", fsdp=True)
    (finding,) = found(run, "redundant")
    assert finding.cost_ns == pytest.approx(6 * 700_000, rel=0.02)
    assert "no_sync" in finding.advice


@pytest.mark.parametrize(
    "run",
    [
        unmarked(updates=1),
        unmarked(updates=0),
        unmarked(updates=4, forward=1 << 24),  # tensor parallelism's
        unmarked(updates=4, size=1 << 10),  # batch norm's
        unmarked(updates=4, once=True),  # of layers
        unmarked(updates=4, op="reduce_scatter"),  # of whom is not known
        unmarked(updates=1, op="reduce_scatter", fsdp=True),
    ],
)
def test_what_threads_do_not_tell_to_be_accumulation(run: Measures) -> None:
    assert not found(run, "redundant")


def two_models(
    first: tuple[int, ...], second: tuple[int, ...], *, update: bool = True, marked: bool = True
) -> Measures:
    """Steps of two passes, each of which reduces gradients of these sizes and updates."""
    run = Tiny(2)
    for rank in range(2):
        for step in range(3):
            start = step * 10_000
            run.step(rank, step, start, 10_000)
            for sizes in (first, second):
                if marked:
                    run.step(rank, step, start, 100, label="DistributedDataParallel.forward")
                for size in sizes:
                    run.collective(rank, "all_reduce", start + 300, 500, size=size)
                    start += 600
                if update or sizes is second:
                    run.step(rank, step, start + 300, 50, label="Optimizer.step#Adam.step")
                start += 600
    return run.trace()


MINE, ITS = 1 << 20, 1 << 22


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("passes", [((ITS,), (ITS, MINE)), ((MINE, ITS), (ITS,))])
def test_gradients_of_the_model_that_one_trains_through_are_needless(
    passes: tuple[tuple[int, ...], tuple[int, ...]], marked: bool
) -> None:
    """Whether DDP reduces them, or the program itself."""
    (finding,) = found(two_models(*passes, marked=marked), "redundant")
    assert "3 operations too many" in finding.summary
    assert finding.cost_ns == pytest.approx(3 * 500_000, rel=0.04)


@pytest.mark.parametrize(
    "run",
    [
        two_models((ITS,), (MINE,)),
        two_models((ITS, MINE), (ITS, MINE)),
        two_models((ITS, 1 << 18), (ITS, MINE)),
        two_models((ITS,), (ITS, MINE), update=False),
        two_models((ITS, MINE), (ITS, MINE), marked=False),
        two_models((ITS,), (ITS, MINE), update=False, marked=False),
    ],
)
def test_models_with_a_pass_each_reduce_their_own(run: Measures) -> None:
    assert not found(run, "redundant")


def checked(*, called: bool) -> Measures:
    """Steps of an all_reduce, before which ranks agree that they are there, and on what."""
    run = Tiny(2, backend="gloo")
    calls = {"call": "c10d::send"} if called else {"call": "gloo:send"}
    for step in range(5):
        for rank in range(2):
            start = step * 10_000
            run.step(rank, step, start, 10_000)
            run.collective(rank, "send", start, 100, size=4, dtype="int32", peer=1 - rank, **calls)
            told = {"dtype": "int64", "call": "gloo:all_gather"}
            run.collective(rank, "all_gather", start + 200, 400, size=16, **told)
            its = {"call": "c10d::allreduce_"}
            run.collective(rank, "all_reduce", start + 1000, 500, size=1 << 20, **its)
    return run.trace()


def test_what_the_debug_level_sends_is_needless() -> None:
    (finding,) = found(checked(called=False), "redundant")
    assert "debug level DETAIL: 10 operations too many, 2.5 ms" in finding.summary
    assert not found(checked(called=True), "redundant")


def barriers(beside: str | None, size: int | None = 1 << 20) -> Measures:
    run = Tiny(2)
    for step in range(5):
        for rank in range(2):
            run.collective(rank, "barrier", step * 1000, 200)
            if beside:
                run.collective(rank, beside, step * 1000 + 300, 500, size=size, root=0)
    return run.trace()


@pytest.mark.parametrize("waits_again", [False, True])
def test_without_a_barrier_hosts_of_gpus_launch_ahead(waits_again: bool) -> None:
    """Each waits in it for its GPU, and takes 400 µs then until the GPU has something to run.

    One that synchronises its device behind it would wait there without it.
    """
    run, at = Tiny(2), 0.0
    for step in range(4):
        for rank in range(2):
            run.step(rank, step, at, 3_000)
            launched = {"launch_ns": BASE_NS + round(1e3 * (at + 390)), "stream": COMMUNICATION}
            run.kernel(rank, at + 400, 1_000, **launched)
            gathers, barrier = (
                {"launch_ns": BASE_NS + round(1e3 * (at + us))} for us in (410, 420)
            )
            run.collective(rank, "all_reduce", at + 1_410, 1_540, size=1 << 24, **gathers)
            run.collective(rank, "barrier", at + 2_955, 20, **barrier)
            run.blocking_call(rank, "cudaStreamSynchronize", at + 425, 2_555)
            run.synchronisation(rank, "Stream Sync", at + 425)
            if waits_again:
                run.blocking_call(rank, "cudaDeviceSynchronize", at + 2_981, 2)
        at += 3_000
    told = found(run.trace(), "redundant")
    if waits_again:
        assert not told
        return
    (finding,) = told
    assert "barriers next to collectives" in finding.summary
    assert finding.cost_ns == pytest.approx(3 * 400e3, rel=0.25)


@pytest.mark.parametrize(
    ("beside", "fires"), [("all_reduce", True), ("broadcast", False), (None, False)]
)
def test_a_barrier_beside_what_waits_for_all_anyway(beside: str | None, fires: bool) -> None:
    assert bool(found(barriers(beside), "redundant")) == fires
    assert bool(found(barriers(beside, size=None), "redundant")) == fires  # a trace without shapes


@pytest.mark.parametrize(("late_us", "fires"), [(0, True), (6_000, False)])
def test_what_a_late_rank_makes_others_wait_in_a_barrier_is_its_own(
    late_us: int, fires: bool
) -> None:
    """Without it the others would wait for it in what comes next.

    Rank 0 works for 2 ms and rank 1 for 4 before the barrier, and the other way round behind it:
    2 ms are saved if nobody waits there. Or rank 0 is ``late``, too, and all the rest is even.
    """
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step, rank in product(range(6), range(2)):
        at = 20_000.0 * step
        run.step(rank, step, at, 20_000)
        first, then = (2_000, 4_000) if rank == 0 else (4_000, 2_000)
        if late_us:
            first, then = (4_000 + late_us * (rank == 0), 2_000 + 1_000 * (rank == 1))
        for works, op, ends in (
            (first, "barrier", 4_100 + late_us),
            (then, "all_reduce", 8_200 + late_us - 1_000 * (late_us > 0)),
        ):
            run.op(rank, at, works)
            end = 20_000 * step + ends
            size = None if op == "barrier" else 1 << 20
            run.collective(rank, op, at + works + 5, end - at - works - 5, size=size, **call)
            run.gap(rank, at + works + 5, end - at - works - 5)
            at = end
    assert bool(found(run.trace(), "redundant")) == fires


def in_step() -> Measures:
    """Rank 0 works 2 ms and sends, and rank 1 3 ms on what it got, twice, each between barriers."""
    run = Tiny(2, backend="gloo")

    def call(rank: int, op: str, begin: int, end: int, **more: Any) -> None:
        run.gap(rank, begin, end - begin)
        its = {"asynchronous": 0, "thread": 1, "stream": 50, "launch_ns": BASE_NS + 1000 * begin}
        run.collective(rank, op, begin, end - begin, **its, **more)

    for step in range(6):
        start = 11_000 * step
        for rank in range(2):
            run.step(rank, step, start, 11_000)
            for at in (start, start + 5_200):
                sent = at + 2_000
                run.op(rank, at if rank == 0 else sent + 100, 2_000 if rank == 0 else 3_000)
                op, begin = ("send", sent) if rank == 0 else ("recv", at)
                call(rank, op, begin, sent + 90, size=1 << 10, peer=1 - rank)
                call(rank, "barrier", at + (2_100 if rank == 0 else 5_110), at + 5_150)
            op = "recv" if rank == 0 else "send"
            call(rank, op, start + 10_500, start + 10_700, size=1 << 12, peer=1 - rank)
    return run.trace()


def test_messages_need_no_barriers() -> None:
    """Without them rank 0 works on its second while rank 1 works on its first."""
    (finding,) = found(in_step(), "redundant")
    assert finding.summary.startswith("barriers next to messages, each of which waits")
    assert finding.cost_ns == pytest.approx(6 * 2_080_000, rel=0.05)


def twice(second: tuple[int, ...], *, between: bool = False) -> Measures:
    run = Tiny(4)
    run.groups |= {"first": (0, 1), "second": second}
    for step in range(5):
        for rank in (0, 1):
            start = step * 2000
            run.collective(rank, "all_reduce", start, 400, size=1 << 24, group="first")
            if between:
                run.kernel(rank, start + 450, 100)
            if rank in second:
                run.collective(rank, "all_reduce", start + 600, 400, size=1 << 24, group="second")
    return run.trace()


def test_a_sum_is_not_summed_again_by_those_who_have_it() -> None:
    (finding,) = found(twice((0, 1)), "redundant")
    assert finding.confidence == "low"
    assert finding.cost_ns == pytest.approx(5 * 400_000, rel=0.04)


def test_other_ranks_or_other_values_are_another_sum() -> None:
    assert not found(twice((0, 2)), "redundant")
    assert not found(twice((0, 1), between=True), "redundant")


def on_cpus(asynchronous: int) -> Measures:
    """Barriers whose host waits in them if they are synchronous, else for nothing."""
    run = Tiny(2, backend="gloo")
    told = {"asynchronous": asynchronous, "thread": 1}
    for step in range(5):
        for rank in range(2):
            run.collective(rank, "barrier", step * 1000, 200, **told)
            if not asynchronous:
                run.gap(rank, step * 1000 - 5, 205)
            run.collective(rank, "all_reduce", step * 1000 + 300, 500, size=1 << 20, **told)
    return run.trace()


def test_a_synchronous_call_on_the_cpu_costs_from_its_call_on() -> None:
    (finding,) = found(on_cpus(asynchronous=0), "redundant")
    assert finding.cost_ns == 5 * 205_000


def test_a_needless_call_that_nobody_waits_for_costs_nothing() -> None:
    assert not found(on_cpus(asynchronous=1), "redundant")


# desync


def test_the_first_divergence_is_named_with_the_minority() -> None:
    run = Tiny(3)
    for rank in range(3):
        for place in range(5):
            size = 1 << (19 if rank == 2 and place >= 3 else 20)
            run.collective(rank, "all_reduce", place * 100, 50, size=size)
    (finding,) = found(run.trace(), "desync")
    assert finding.ranks == (2,)
    assert "operation 3" in finding.summary


def test_a_divergence_stands_where_what_it_explains_would() -> None:
    """The group's first calls differ, so that they take until a timeout; all have other costs."""
    run = Tiny(2)
    for rank in range(2):
        op = ("all_reduce", "broadcast")[rank]
        run.collective(rank, op, 0, 50_000, size=1 << 20, seq=0)
        for place in range(1, 8):
            run.collective(rank, "all_reduce", 60_000 + place * 1000, 500, size=1 << 20, seq=place)
        run.step(rank, 0, 0, 70_000)
    findings = diagnose(run.trace()).findings
    assert [(one.rule, one.explained_by) for one in findings][:2] == [
        ("desync", None),
        ("cold-start", "desync"),
    ]


def test_a_divergence_does_not_explain_what_is_slow_elsewhere() -> None:
    run = Tiny(2)
    run.groups["other"] = (0, 1)
    for rank in range(2):
        run.collective(rank, ("all_reduce", "broadcast")[rank], 0, 500, size=1 << 20)
        for place in range(8):
            took, start = (500, 51_000 + place * 1000) if place else (50_000, 0)
            other = {"group": "other", "stream": 99}
            run.collective(rank, "all_reduce", start, took, size=1 << 20, **other)
    because = {one.rule: one.explained_by for one in diagnose(run.trace()).findings}
    assert because["desync"] is None
    assert because["cold-start"] is None


def test_lost_events_and_own_sizes_are_no_divergence() -> None:
    run = Tiny(2)
    for rank in range(2):
        for place in range(5):
            if (rank, place) != (1, 2):
                run.collective(rank, "all_reduce", place * 100, 50, size=place << 20, seq=place)
        run.collective(rank, "all_to_all", 900, 50, size=(rank + 1) << 20, seq=9)
    assert not found(run.trace(), "desync")


def test_positions_are_not_enough() -> None:
    run = Tiny(2)
    run.collective(0, "all_reduce", 0, 50, size=1 << 20, seq=None)
    run.collective(1, "broadcast", 0, 50, size=1 << 20, seq=None)
    assert "sequence numbers" in skipped(run.trace(), "desync")
    assert "several ranks" in skipped(Tiny(1).trace(), "desync")


# unfit-trace


def test_each_way_of_being_unfit_is_distinguished() -> None:
    run = Tiny(2)
    for i in range(20):
        run.kernel(0, i * 100, 50, launch_ns=None)
        late = {"launch_ns": run.rows["kernels"][0]["start_ns"] + 10**9} if i == 0 else {}
        run.kernel(1, i * 100, 50, **late)
    run.notes.append(Note("truncated", "the JSON breaks off", 1, "rank1.json"))
    told = [finding.summary for finding in found(run.trace(), "unfit-trace")]
    assert len(told) == 3
    assert "broke off" in told[0]
    assert "50 % of the kernels lack their launch" in told[1]
    assert "before their launch" in told[2]


@pytest.mark.parametrize(("lost", "unfit"), [(range(6), False), (range(10, 16), True)])
def test_what_gpus_still_run_of_before_makes_no_trace_unfit(lost: range, unfit: bool) -> None:
    run = Tiny(1)
    for i in range(20):
        run.kernel(0, i * 100, 50, **({"launch_ns": None} if i in lost else {}))
    assert bool(found(run.trace(), "unfit-trace")) == unfit


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        ("truncated", "1 file broke off: why", "stop the profiler"),
        ("damaged", "1 file came damaged: why", "what could be read is analysed"),
        ("unreadable", "1 file cannot be read: why", "copy it"),
    ],
)
def test_a_broken_file_is_told_with_its_reason_and_remedy(
    code: str, said: str, remedy: str
) -> None:
    run = Tiny()
    run.notes.append(Note(code, "why", 0, "rank0.json"))
    (finding,) = found(run.trace(), "unfit-trace")
    assert finding.summary == said
    assert remedy in finding.advice


def test_a_long_reason_is_cut_between_words() -> None:
    run = Tiny()
    run.notes.append(Note("truncated", "unfinished " * 20, 0, "rank0.json"))
    (finding,) = found(run.trace(), "unfit-trace")
    assert finding.summary.endswith("unfinished …")


def on_one_host(*lasts_us: float, starting_us: float = 0) -> Measures:
    """Ranks that compute for so long each, each so much later than the one before."""
    run = Tiny(len(lasts_us), backend="gloo")
    for rank, lasts in enumerate(lasts_us):
        run.op(rank, rank * starting_us, lasts, name="aten::mm")
    return run.trace()


@pytest.mark.parametrize(
    ("run", "apart"),
    [
        (on_one_host(9000, 4000), True),
        (on_one_host(9000, 5000), False),
        (on_one_host(9000, 9000, starting_us=5000), True),
        (on_one_host(9000, 9000, starting_us=4000), False),
        (on_one_host(9000), False),
    ],
)
def test_ranks_that_were_recorded_at_different_times_are_told(run: Measures, apart: bool) -> None:
    told = [it.summary for it in found(run, "unfit-trace")]
    assert [text for text in told if "at different times" in text] == (told if apart else [])
    assert apart == bool(told)


@pytest.mark.parametrize(("call", "told"), [("c10d::allreduce_", True), ("aten::mm", False)])
def test_calls_whose_work_was_not_recorded_are_no_run_without_communication(
    call: str, told: bool
) -> None:
    run = Tiny(2)
    for rank in (0, 1):
        run.op(rank, 10, 50, name=call, kind="communication")
    trace = run.trace()
    (*findings,) = found(trace, "unfit-trace")
    assert len(findings) == told
    said = "ranks 0–1 called 2 operations that communicate, and nothing"
    assert all(its.summary.startswith(said) for its in findings)
    run.kernel(0, 0, 10)
    run.kernel(1, 0, 10)
    assert not found(run.trace(), "unfit-trace")


def test_a_rank_whose_gpu_alone_was_not_recorded_is_named() -> None:
    run = Tiny(2)
    for rank in (0, 1):
        run.op(rank, 10, 50, name="c10d::allreduce_", kind="communication")
    run.kernel(0, 20, 30)
    (finding,) = found(run.trace(), "unfit-trace")
    assert finding.summary.startswith("rank 1 called 1 operation that communicate")
    assert finding.ranks == (1,)
    (note,) = unrecorded_work(run.trace())
    assert (note.rank, note.message[:26]) == (1, "its host called 1 operatio")


def test_missing_ranks_are_counted_by_the_jobs_size() -> None:
    (finding,) = found(edited(Tiny(2).trace(), "ranks", world_size=8), "unfit-trace")
    assert "no trace file for ranks 2–7 of 8" in finding.summary


# recordings


@pytest.mark.parametrize(
    ("name", "fires"),
    [
        ("all_gather", ()),
        ("all_to_all", ()),  # within one memory
        ("barrier", ()),
        ("cold_start", ()),
        ("ddp_training", ("redundant",)),
        ("pipeline", ()),
        ("reduce_scatter", ("emulated-operation",)),
        ("send_recv", ()),
    ],
)
def test_recordings(recorded: Path, name: str, fires: tuple[str, ...]) -> None:
    diagnosis = diagnose(read([recorded / name / "gloo-4"]), select=RULES)
    assert {finding.rule for finding in diagnosis.findings} == {*fires}


CALLS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(OPERATIONS),
    st.integers(0, 5000),
    st.integers(0, 1000),
    st.sampled_from([None, 0, 1024, 4096]),
    st.sampled_from([None, 0, 1, 4]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from(["all_reduce", None]),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(CALLS, max_size=30))
def test_no_mess_of_operations_is_too_much(calls: list[tuple[int, ...]]) -> None:
    run = Tiny(3)
    for rank, op, start, took, size, seq, members, executed in calls:
        more = {"seq": seq, "group_size": members, "executed": executed}
        run.collective(rank, op, start, took, size=size, **more)
    rules = (*RULES, "decomposed-all-reduce", "byte-inflation")
    for finding in diagnose(run.trace(), select=rules).findings:
        assert finding.cost_ns >= 0
        assert "\n" not in finding.summary


# redundant: a module's buffers


def ddp(op: str = "broadcast", before: str | None = None, threads: int | None = None) -> Measures:
    """In each forward pass 3 ms of something that is sent, then 4 ms of compute."""
    run = Tiny(2, backend="gloo")
    for step in range(6):
        for rank in range(2):
            at = step * 10_000
            run.step(rank, step, at, 10_000)
            run.step(rank, step, at + 10, 8000, label="DistributedDataParallel.forward")
            if before:
                run.collective(rank, before, at + 20, 10, size=64, thread=1, asynchronous=0)
            where = {"thread": 1, "stream": 50, "asynchronous": 1, "root": 0}
            run.collective(rank, op, at + 100, 3000, size=1 << 24, **where)
            run.gap(rank, at + 100, 3000)
            run.op(rank, at + 3100, 4000)
    return run.trace()


def test_what_ddp_sends_before_each_forward_pass_are_its_buffers() -> None:
    run = ddp()
    (finding,) = found(run, "redundant")
    assert "module's buffers" in finding.summary
    assert "broadcast_buffers=False" in finding.advice
    assert finding.cost_ns == pytest.approx(6 * 3_000_000, rel=0.05)
    assert not found(run, "false-overlap")  # whose wait no program could move


@pytest.mark.parametrize("other", [{"op": "all_reduce"}, {"before": "all_reduce"}])
def test_what_comes_later_in_a_forward_pass_is_the_modules_own(other: dict[str, str]) -> None:
    assert not found(ddp(**other), "redundant")


# redundant: parameters that every rank has


def sending(
    parts: int = 2,
    root: int | None = None,
    update_us: float = 500,
    reduces: bool = False,
    first: int = 0,
) -> Measures:
    """In each step 2 MB of gradients are averaged, and some of 1 MB each sent by rank 0.

    Of a group of two ranks, of which the ``first`` is what rank 0 is else.
    """
    run = Tiny(first + 2, backend="gloo")
    run.groups = {"0": (first, first + 1)}
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step in range(6):
        for rank in range(first, first + 2):
            at = step * 20_000
            run.step(rank, step, at, 20_000)
            run.op(rank, at, 4000)
            run.collective(rank, "all_reduce", at + 4000, 2000, size=2_000_000, step=step, **call)
            run.gap(rank, at + 4000, 2000)
            if reduces:
                run.collective(rank, "reduce", at - 1000, 500, size=8, step=step, root=0, **call)
            mine = update_us if rank == first else 500
            run.op(rank, at + 6000, mine)
            for part in range(parts):
                sent = {"root": part if root is None else root, "step": step, **call}
                start = at + 6010 + mine + 1510 * part
                took = 1500 + (update_us - mine if part == 0 else 0)
                run.collective(rank, "broadcast", start, took, size=1_000_000, **sent)
                run.gap(rank, start, took)
    return run.trace()


@pytest.mark.parametrize("first", [0, 2])
def test_parameters_that_follow_from_the_gradients_need_not_be_sent(first: int) -> None:
    (finding,) = found(sending(root=first, first=first), "redundant")
    assert "12 operations too many" in finding.summary
    assert finding.cost_ns == pytest.approx(6 * 3_000_000, rel=0.05)


@pytest.mark.parametrize(
    "run",
    [
        sending(root=None),  # each of what it alone updates
        sending(root=0, update_us=5000),  # what rank 0 alone updates
        sending(root=0, parts=1),  # something else
        sending(root=0, reduces=True),  # what it got from all
    ],
)
def test_what_only_the_root_has_is_to_be_sent(run: Measures) -> None:
    assert not found(run, "redundant")


def sending_on_gpus(
    dtype: str = "float32", computes_us: float = 500, copies_us: float = 0, late_us: float = 0
) -> Measures:
    """In each step a million gradients are averaged as bfloat16, and as many sent by rank 0.

    Between the two it computes, after it copied; its host launches what is sent some time late.
    """
    run = Tiny(2)
    for step in range(6):
        for rank in range(2):
            at = step * 20_000
            run.step(rank, step, at, 20_000)
            run.kernel(rank, at + 10, 4000)
            run.collective(rank, "all_reduce", at + 4010, 2000, size=2_000_000, dtype="bfloat16")
            now = at + 6010.0
            if rank == 0 and copies_us:
                run.copy(rank, now, copies_us, kind="HtoD", size=1 << 20)
            now += copies_us + 10
            run.kernel(rank, now, computes_us if rank == 0 else 500)
            now += max(computes_us, 500) + late_us
            launched = {"launch_ns": BASE_NS + round(1e3 * (now - (5 if rank == 0 else late_us)))}
            for part in range(2):
                start = now + 2000 * part
                its: dict[str, Any] = {"size": 2_000_000, "dtype": dtype, "root": 0, **launched}
                run.collective(rank, "broadcast", start, 1990, **its)
    return run.trace()


@pytest.mark.parametrize(
    ("run", "fires"),
    [
        (sending_on_gpus(), True),
        (sending_on_gpus(late_us=3000), True),  # which a host is for whatever reason
        (sending_on_gpus(dtype="int32"), False),
        (sending_on_gpus(computes_us=3000), False),
        (sending_on_gpus(copies_us=100), False),
    ],
)
def test_on_gpus_what_the_root_computes_and_copies_tells_whether_it_has_news(
    run: Measures, fires: bool
) -> None:
    findings = found(run, "redundant")
    assert bool(findings) == fires
    for finding in findings:
        assert "as much as was all_reduced" in finding.summary


@pytest.mark.parametrize(("others", "first"), [(0, "redundant"), (40, "latency-bound")])
def test_what_need_not_be_sent_need_not_be_joined(
    others: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what could be joined, which is worth more, all need not be sent, or less than half."""
    run = sending(root=0, parts=4)
    sent = joined_rows(run, run.rows("collectives").coded("op").being("broadcast"))
    summed = joined_rows(run, run.rows("collectives").coded("op").being("all_reduce"))
    joined = np.concatenate((sent.ints("operation"), np.repeat(summed.ints("operation"), others)))
    for rule, cost_ns, numbers in (
        (Redundant, 5_000_000, sent.ints("operation")),
        (LatencyBound, 9_000_000, joined),
    ):

        def check(
            self: Rule, run: Measures, cost_ns: int = cost_ns, numbers: Int64 = numbers
        ) -> Iterator[Finding]:
            said: Any = {"summary": "", "advice": "", "evidence": ()}
            yield self.finding(sent, cost_ns=cost_ns, operations=numbers, **said)

        monkeypatch.setattr(rule, "check", check)
    its = diagnose(run, select=["redundant", "latency-bound"]).findings
    assert its[0].rule == first
    assert its[1].explained_by == (first if first == "redundant" else None)


# redundant: what never changes


def frozen(
    sizes: tuple[int, ...] = (3_000_000, 500_000, 20_000),
    loads_us: float = 500,
    dtype: str = "float32",
    also: str = "",
    beside: bool = False,
    averages: str = "all_reduce",
    averages_us: float = 5000,
) -> Measures:
    """In each step rank 0 sends parts of these sizes; then gradients of 9 MB are averaged.

    And, if asked for, something in another group.
    """
    run = Tiny(2, backend="gloo")
    run.groups = {"0": (0, 1), "1": (0, 1)}
    for step in range(6):
        for rank in range(2):
            at = step * 30_000
            call: dict[str, Any] = {"thread": 1, "stream": 50, "asynchronous": 0, "step": step}
            if beside:
                run.collective(rank, "all_reduce", at + 29_000, 100, size=8, group="0", **call)
                run.gap(rank, at + 29_000, 100)
                call["group"] = "1"
            run.step(rank, step, at, 30_000)
            mine = loads_us if rank == 0 else 500
            run.op(rank, at, mine)
            start = at + 10 + mine
            for part, size in enumerate(sizes):
                took = 1500 + (loads_us - mine if part == 0 else 0)
                sent = {"size": size, "root": 0, "dtype": dtype}
                run.collective(rank, "broadcast", start, took, **sent, **call)
                run.gap(rank, start, took)
                start += took + 10
            run.op(rank, start, 4000)
            run.collective(rank, averages, start + 4000, averages_us, size=9_000_000, **call)
            run.gap(rank, start + 4000, averages_us)
            if also:
                run.collective(rank, also, start + 9100, 100, size=8, root=0, **call)
    return run.trace()


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"beside": True},
        {"averages": "reduce_scatter"},  # and gathered, with which all have the same
        {
            "loads_us": 650,
            "averages_us": 20_900,
        },  # while as many bytes as it sends take 176 µs to write
    ],
)
def test_what_is_sent_in_every_step_and_known_to_all_seems_constant(how: dict[str, Any]) -> None:
    (finding,) = found(frozen(**how), "redundant")
    assert finding.summary.startswith("one rank sends the same 3 tensors in every step")
    assert finding.confidence == "low"
    assert finding.cost_ns == pytest.approx(6 * 4_500_000, rel=0.05)


@pytest.mark.parametrize(
    "run",
    [
        frozen(sizes=(3_000_000, 500_000, 500_000)),  # a batch
        frozen(loads_us=1000, averages_us=20_900),  # in which it can make it
        frozen(loads_us=5000),  # what the root reads meanwhile
        frozen(loads_us=5000, beside=True),
        frozen(dtype="int64"),  # tokens
        frozen(also="gather"),  # what it made of what it got
    ],
)
def test_what_the_root_may_have_from_elsewhere_is_to_be_sent(run: Measures) -> None:
    assert not found(run, "redundant")


# redundant: FSDP2's micro-batches


def fsdp2(reducing: tuple[int, ...], annotated: bool = True) -> Measures:
    """Four micro-batches a step; after some of them gradients are scattered, then one update."""
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step in range(4):
        for rank in range(2):
            start = 40_000 * step
            run.step(rank, step, start, 40_000)
            for micro in range(4):
                at = start + 10_000 * micro
                run.step(rank, step, at, 100, label="FSDP::root_pre_forward")
                run.op(rank, at, 5000)
                if micro in reducing:
                    if annotated:
                        run.step(rank, step, at + 5000, 100, label="FSDP::post_backward_reduce (a)")
                    begin = at + 5010
                    run.collective(
                        rank, "reduce_scatter", begin, 4000, size=1 << 22, step=step, **call
                    )
                    run.gap(rank, begin, 4000)
    return run.trace()


def test_fsdp2_reduces_once_for_all_micro_batches() -> None:
    (finding,) = found(fsdp2((0, 1, 2, 3)), "redundant")
    assert "12 operations too many" in finding.summary
    assert "set_requires_gradient_sync(False)" in finding.advice
    assert finding.cost_ns == pytest.approx(12 * 4_000_000, rel=0.05)


def test_what_fsdp2_does_not_call_its_reductions_is_none() -> None:
    assert not found(fsdp2((3,)), "redundant")
    assert not found(fsdp2((0, 1, 2, 3), annotated=False), "redundant")  # sequence parallelism


# redundant: a frozen model's parameters


@pytest.mark.parametrize(
    ("layers", "reduced", "in_backward", "told"),
    [
        (6, 1 << 20, True, True),
        (6, 1 << 24, True, False),  # trained: as many gradients as a third of the parameters
        (3, 1 << 20, True, False),  # few: two tensors of which each rank has a part, say
        (6, 1 << 20, False, False),  # gathered in forward alone: activations, say
    ],
)
def test_parameters_of_a_frozen_model_need_not_be_gathered_in_each_step(
    layers: int, reduced: int, in_backward: bool, told: bool
) -> None:
    """Each layer's before it computes 300 us, in forward and in backward; 700 us each."""
    run = Tiny(2)
    for step, rank in product(range(4), range(2)):
        start = 20_000 * step
        run.step(rank, step, start, 20_000)
        for at in range(2 * layers):
            launched = BASE_NS + 1000 * (start + 10 * at)
            on = {"launch_ns": launched, "thread": 1 + (in_backward and at >= layers)}
            begin = start + 150 + 1000 * at
            run.collective(rank, "all_gather", begin, 700, size=1 << 23, stream=20, **on)
            run.kernel(rank, begin + 700, 300, **on)
        on = {"launch_ns": BASE_NS + 1000 * (start + 140), "thread": 2}
        run.collective(rank, "all_reduce", start + 150 + 2000 * layers, 50, size=reduced, **on)
    its = found(run.trace(), "redundant")
    assert bool(its) == told
    if told:
        assert "as of a model that is frozen but for adapters: 48 operations" in its[0].summary
        assert its[0].cost_ns == pytest.approx(4 * 12 * 700_000, rel=0.03)


# redundant: gradients that DDP has averaged


def averaging(
    behind: tuple[int, ...],
    forwards: int = 1,
    updated: bool = False,
    backward_us: float = 4_100,
    again: str = "float32",
    of_layer: bool = False,
) -> Measures:
    """DDP's two buckets of 2 and 1 MB, and behind them all_reduces of so many kB, of a type.

    Or in the next step, behind the optimizer's. The backward pass is as long as ``backward_us``.
    A layer may reduce something in it, for which it waits; DDP then does not.
    """
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step in range(4):
        for rank in range(2):
            at = 30_000 * step
            run.step(rank, step, at, 30_000)
            for number in range(forwards):
                label = "DistributedDataParallel.forward"
                run.step(rank, step, at + 10 + 500 * number, 400, label=label)
            run.op(rank, at, 4000)
            run.step(rank, step, at + 4_900, backward_us, label="backward")
            if of_layer:
                its = {"size": 300_000, "dtype": "float32", **call}
                run.collective(rank, "all_reduce", at + 4_950, 40, **its)
            for number, kilobytes in enumerate((2000, 1000, *behind)):
                start = at + 5000 + 2010 * number
                later = updated and number > 1
                if later:  # the next step begins at 30000
                    start += 16_000
                more = {"step": step + later, "dtype": again if number > 1 else "float32", **call}
                more["asynchronous"] = int(of_layer and number < 2)
                run.collective(rank, "all_reduce", start, 2000, size=1000 * kilobytes, **more)
                run.gap(rank, start, 2000)
            if updated:
                run.step(rank, step, at + 20_000, 500, label="Optimizer.step#SGD.step")
    return run.trace()


@pytest.mark.parametrize("of_layer", [False, True])
def test_what_ddp_averaged_need_not_be_averaged_again(of_layer: bool) -> None:
    (finding,) = found(averaging((500, 1200, 1300), of_layer=of_layer), "redundant")
    assert "12 operations too many" in finding.summary
    assert finding.cost_ns == pytest.approx(12 * 2_000_000, rel=0.05)


def test_nor_are_they_in_another_precision() -> None:
    (finding,) = found(averaging((1000, 2400, 2600), again="float64"), "redundant")
    assert "12 operations too many" in finding.summary
    assert not found(averaging((1000, 2400, 2600), again="int64"), "redundant")


@pytest.mark.parametrize("backward_us", [12_000, 50])
def test_buckets_of_the_same_size_are_no_averages_of_one_another(backward_us: float) -> None:
    """All are DDP's own, in backward; or none is, behind it."""
    assert not found(averaging((500, 1200, 1300), backward_us=backward_us), "redundant")


def test_parameters_that_are_averaged_after_the_update_are_no_micro_batch() -> None:
    (finding,) = found(averaging((2000, 1000), updated=True), "redundant")
    assert finding.summary.startswith("behind DDP's own")
    assert "6 operations too many" in finding.summary  # the last are in no step


def test_micro_batches_are_averaged_once() -> None:
    (finding,) = found(averaging((2000, 1000), forwards=2), "redundant")
    assert "8 operations too many" in finding.summary


def test_what_else_is_averaged_is_something_else() -> None:
    assert not found(averaging((500, 1200)), "redundant")


@pytest.mark.parametrize(("statistics", "told"), [(False, True), (True, False)])
def test_a_pass_that_reduces_anothers_gradients_too_is_told_but_for_statistics(
    statistics: bool, told: bool
) -> None:
    """A discriminator's pass, and a generator's through it, each before an update of its own.

    Small sums that a group also gathers, as often, are a batch norm's.
    """
    run, size = Tiny(2), 4_096 if statistics else 1 << 22
    for step, rank in product(range(4), range(2)):
        begin = 20_000 * step
        run.step(rank, step, begin, 19_000)
        for nth, count in enumerate((1, 2)):
            at = begin + 9_000 * nth + 10
            run.step(rank, step, at, 100, label="DistributedDataParallel.forward")
            for i in range(2 * count if statistics else 0):
                run.collective(rank, "all_gather", at + 10 + 20 * i, 15, size=2 * size)
            for i in range(2):
                run.collective(rank, "all_reduce", at + 1_000 * (1 + i), 900, size=size)
            if nth:
                other = size if statistics else 1 << 23
                run.collective(rank, "all_reduce", at + 3_000, 900, size=other)
            run.step(rank, step, at + 6_000, 500, label="Optimizer.step#Adam.step")
    findings = found(run.trace(), "redundant")
    assert any("gradients of another" in its.summary for its in findings) == told


# redundant: what tensor parallelism gathers


def layers(
    ahead: int = 3, behind: int = 3, afterwards: int = 0, *, scatters: bool = False, sums: int = 2
) -> Measures:
    """In each step layers sum activations, and gather so many in forward and in backward.

    Then, when that is over, some are gathered once more.
    """
    run = Tiny(2, backend="gloo")
    call: dict[str, Any] = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step, rank in product(range(6), range(2)):
        now = begun = 40_000.0 * step
        for label, sizes in (
            ("forward", [("all_gather", 1 << 21)] * ahead + [("all_reduce", 1 << 19)] * sums),
            ("backward", [("all_gather", 1 << 21)] * behind + [("all_reduce", 1 << 19)] * 2),
            ("optimizer", [("all_gather", 1 << 22)] * afterwards),
        ):
            first = now
            for op, size in sizes + [("reduce_scatter", 1 << 20)] * scatters:
                run.op(rank, now, 1_000)
                launch = {"launch_ns": BASE_NS + round(1e3 * (now + 1_000))}
                run.collective(rank, op, now + 1_050, 900, size=size, **launch, **call)
                run.gap(rank, now + 1_000, 950)
                now += 1_950
            run.step(rank, step, first, now + 10 - first, label=f"## {label} ##")
            now += 20
        run.step(rank, step, begun, 40_000)
    return run.trace()


@pytest.mark.parametrize(
    ("run", "operations", "said"),
    [
        (layers(), 6, "activations are gathered that the next layer cuts again"),
        (layers(0, 0, 3), 3, "that tensor parallelism splits are gathered whole"),
        (layers(3, 2), 0, ""),  # of the last layer's result alone nothing is cut
        (layers(0, 0, 1), 0, ""),
        (layers(scatters=True), 0, ""),
        (layers(0, 0, 3, sums=0), 0, ""),  # no layers: as of ZeRO
    ],
)
def test_what_tensor_parallelism_can_do_without(run: Measures, operations: int, said: str) -> None:
    findings = [its for its in found(run, "redundant") if "gathered" in its.summary]
    assert [said in its.summary for its in findings] == [True] * bool(operations)
    if operations:
        assert findings[0].cost_ns == pytest.approx(6 * operations * 0.95e6, rel=0.1)
