"""Advice that fits the program, and no other finding's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import everyone_computes, size_for
from commtrace.arrays import NULL
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.metrics.rank.exposed_calls import asynchronous, rows_of_operation
from commtrace.rules import diagnose
from commtrace.rules._behind_waits import behind_waits
from commtrace.rules._late_reductions import in_one_bucket, starts_late
from commtrace.rules._less import asked, fewer_bytes
from commtrace.rules._overlapped import overlapped
from commtrace.synthetic import BASE_NS, Tiny
from tests.gloo_loop import gloo_loop

STEPS = 12


def found(run: Measures, rule: str) -> Finding:
    (its,) = (its for its in diagnose(run).findings if its.rule == rule)
    return its


@pytest.mark.parametrize(("late_us", "gets_more"), [(0, True), (9_000, False)])
def test_a_root_that_is_late_elsewhere_is_given_no_more_work(
    late_us: float, gets_more: bool
) -> None:
    gathers = ("reduce", lambda rank, step: 3_000 + 3_000 * rank)
    sends = ("broadcast", lambda rank, step: 3_000 + late_us * (rank == 0))
    its = found(gloo_loop(gathers, sends, ranks=2, steps=STEPS, size=1 << 20), "early-root")
    assert its.ranks == (0,)
    assert ("larger share" in its.advice) == gets_more


@pytest.mark.parametrize("answers", [False, True])
def test_a_root_that_sends_back_what_it_computes_need_be_none(answers: bool) -> None:
    gathers = ("reduce", lambda rank, step: 3_000 + 3_000 * rank)
    sends = ("broadcast" if answers else "barrier", lambda rank, step: 3_000)
    its = found(gloo_loop(gathers, sends, ranks=2, steps=STEPS, size=1 << 20), "early-root")
    assert ("all_reduce, and let every rank compute that" in its.advice) == answers


@pytest.mark.parametrize("size", [None, 64, 1 << 20])
@pytest.mark.parametrize(("count", "told"), [(20, True), (4, False)])
def test_many_operations_of_few_bytes_are_counted(count: int, told: bool, size: int | None) -> None:
    """Or of unknown ones; ``latency-bound`` tells of those in a row."""
    sums = [("all_reduce", lambda rank, step: 400.0)] * count
    its = found(gloo_loop(*sums, ranks=2, steps=STEPS, size=size), "exposed-communication")
    told = told and size != 1 << 20
    assert ("each step has 20 of them" in its.advice) == told


@pytest.mark.parametrize(("size", "told"), [(1 << 18, True), (1 << 21, False)])
def test_units_that_are_too_small_to_shard(size: int, told: bool) -> None:
    units = [("all_gather", lambda rank, step: 400.0)] * 20
    reduced = [("reduce_scatter", lambda rank, step: 400.0)] * 10
    run = gloo_loop(*units, *reduced, ranks=2, steps=STEPS, size=size)
    advice = found(run, "exposed-communication").advice
    assert ("each step has 20 of them below 1 MB: shard whole blocks" in advice) == told


def exposed(*ops: str, group: str = "0", backward: bool = False, **of: Any) -> str:
    """The advice on operations that ten times come between a kernel and another."""
    run = Tiny(ranks=2)
    run.groups = {group: (0, 1)}
    for i in range(10):
        start = 2000 * i
        for rank, op in enumerate(ops if len(ops) > 1 else 2 * ops):
            if backward:
                run.step(rank, i, start, 1500, label="## backward ##")
            run.kernel(rank, start, 100)
            its = {**of, "group": group, "launch_ns": BASE_NS + 1000 * (start + 5)}
            run.collective(rank, op, start + 100, 400, **its)
            run.kernel(rank, start + 500, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    (finding,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    return finding.advice


OF_GRADIENTS: dict[str, Any] = {"size": 1 << 20, "asynchronous": 1, "backward": True}


@pytest.mark.parametrize(("dtype", "asked"), [("float32", True), ("bfloat16", False)])
def test_gradients_of_half_precision_are_not_to_be_halved(dtype: str, asked: bool) -> None:
    assert ("bf16 gradients" in exposed("all_reduce", dtype=dtype, **OF_GRADIENTS)) == asked


@pytest.mark.parametrize(("size", "asked"), [(1_000_000, True), (900_000, False)])
def test_less_of_little_saves_nothing(size: int, asked: bool) -> None:
    assert ("bf16 gradients" in exposed("all_reduce", **{**OF_GRADIENTS, "size": size})) == asked


@pytest.mark.parametrize(("size", "asked"), [(1_000_000, True), (383_000, False)])
def test_little_is_not_to_be_sent_in_half_precision(size: int, asked: bool) -> None:
    run = gloo_loop(("all_reduce", lambda rank, step: 400.0), ranks=2, steps=STEPS, size=size)
    assert ("half precision" in fewer_bytes(run, ["all_reduce"])) == asked


@pytest.mark.parametrize(("op", "asked"), [("all_reduce", True), ("reduce_scatter", False)])
def test_only_all_reduces_have_ddps_options(op: str, asked: bool) -> None:
    assert ("bucket_cap_mb" in exposed(op, **OF_GRADIENTS)) == asked


@pytest.mark.parametrize("asynchronous", [1, None])
@pytest.mark.parametrize(
    ("calls", "told"),
    [
        (1, "there is one a step, of 1.05 MB, when backward is over: try other bucket sizes"),
        (3, "all start when backward is over, none as its gradients are ready (Megatron-LM: --"),
        (3, "--overlap-grad-reduce): try other bucket sizes"),
        (40, "try larger buckets (bucket_cap_mb: each step has 40, of 1.05 MB)"),
    ],
)
def test_gradients_that_start_together_at_the_end_are_to_start_earlier(
    calls: int, told: str, asynchronous: int | None
) -> None:
    """Also where the trace does not say how they were called, and nothing runs beside them."""
    late = late_gradients(calls, "exposed-communication", asynchronous=asynchronous)
    assert told in late[0].advice


@pytest.mark.parametrize("lost", [0, 2])
def test_one_bucket_of_all_gradients_is_to_be_several(lost: int) -> None:
    """Also where the launches of some, and so their steps, are lost."""
    (late,) = late_gradients(1, "exposed-communication", size=1 << 27, lost=lost)
    assert "of 134 MB, when backward is over: try smaller buckets (bucket_cap_mb)" in late.advice


def test_fewer_bytes_are_no_remedy_for_gradients_that_start_too_late() -> None:
    """Nor for another loss: what needs neither comes first where it saves more."""
    late, large = late_gradients(1, "exposed-communication", "full-precision-payload", size=1 << 26)
    assert (late.rule, late.explained_by) == ("exposed-communication", None)
    assert large.rule == "full-precision-payload"
    assert large.cost_ns == pytest.approx(0.5 * late.cost_ns, rel=0.02)


@pytest.mark.parametrize(("backward_thread", "late"), [(2, True), (1, False)])
def test_what_the_program_averages_by_itself_behind_backward_starts_late(
    backward_thread: int, late: bool
) -> None:
    """An optimizer's kernels are behind it, of the same thread; backward's are of their own."""
    run = Tiny()
    for i in range(4):
        start = 3000 * i
        run.step(0, i, start, 2900)
        called = [BASE_NS + 1000 * (start + us) for us in range(4)]
        run.kernel(0, start + 10, 500, launch_ns=called[0])
        run.kernel(0, start + 510, 1000, launch_ns=called[1], thread=backward_thread)
        run.collective(0, "all_reduce", start + 1510, 900, size=1 << 26, launch_ns=called[2])
        run.kernel(0, start + 2410, 300, launch_ns=called[3])
    assert starts_late(run.trace(), np.arange(4)) == late


def test_gradients_that_are_summed_behind_backward_are_no_tensors_that_layers_sum_in_it() -> None:
    """Tensor parallelism's sums are in backward, of 0.2 ms; the gradients' behind it, of 2 ms."""
    run = Tiny(ranks=4)
    run.groups = {f"mesh_tp:{i}": (2 * i, 2 * i + 1) for i in range(2)}
    run.groups |= {f"mesh_dp:{i}": (i, i + 2) for i in range(2)}
    for i, rank in product(range(4), range(4)):
        start = 5000 * i
        run.step(rank, i, start, 4900)
        called = [{"launch_ns": BASE_NS + 1000 * (start + us)} for us in range(5)]
        run.kernel(rank, start + 10, 1000, **called[0])
        run.kernel(rank, start + 1010, 700, thread=2, **called[1])
        tensors = {"group": f"mesh_tp:{rank // 2}", "size": 1 << 22, **called[2]}
        run.collective(rank, "all_reduce", start + 1710, 200, thread=2, **tensors)
        run.kernel(rank, start + 1910, 700, thread=2, **called[3])
        gradients = {"group": f"mesh_dp:{rank % 2}", "size": 1 << 26, **called[4]}
        run.collective(rank, "all_reduce", start + 2610, 2000, **gradients)
        run.kernel(rank, start + 4610, 200, launch_ns=BASE_NS + 1000 * (start + 6))
    its = found(run.trace(), "exposed-communication")
    assert its.advice.startswith("all_reduce when backward is over hides behind nothing")


def test_a_barrier_that_is_exposed_is_to_be_left_out() -> None:
    run = Tiny(ranks=2)
    for rank in (0, 1):
        run.collective(rank, "barrier", 0, 1000)
    trace = run.trace()
    advice = overlapped(trace, asynchronous(trace, "barrier"), "barrier", starved=False)
    assert advice.startswith("leave the barrier out, unless it orders something outside")


def test_a_call_on_a_stream_of_its_own_holds_up_nothing_however_it_was_called() -> None:
    """As FSDP's reduce_scatters, with async_op=False: half of each runs beside compute."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 3000 * i
        run.step(rank, i, start, 2900)
        run.kernel(rank, start, 800)
        run.collective(rank, "reduce_scatter", start + 300, 1000, size=1 << 20, asynchronous=0)
        run.kernel(rank, start + 1300, 1500, launch_ns=BASE_NS + 1000 * (start + 310))
    (its,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert its.advice.startswith("reduce_scatter runs asynchronously already")


def late_gradients(
    calls: int,
    *rules: str,
    size: int = 1 << 20,
    forward: str = "forward",
    asynchronous: int | None = 1,
    lost: int = 0,
) -> list[Finding]:
    """In each step 1 ms of backward, then 0.9 ms of all_reduces in some calls, then an update.

    The launches of the all_reduces of the first steps may be ``lost``.
    """
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 3000 * i
        run.step(rank, i, start, 2900)
        run.step(rank, i, start - 10, 5, label=forward)
        run.step(rank, i, start, 1990, label="## backward ##")
        called = [BASE_NS + 1000 * (start + us) for us in range(calls + 2)]
        run.kernel(rank, start + 5, 995, name="gemm_bf16", launch_ns=called[0], thread=2)
        for call in range(calls):
            its: dict[str, Any] = {"size": size, "asynchronous": asynchronous}
            begin, took = start + 1000 + 900 / calls * call, 900 / calls
            its["launch_ns"] = called[1 + call]
            its |= {"launch_ns": NULL, "step": NULL} if i < lost else {}
            run.collective(rank, "all_reduce", begin, took, **its)
        run.kernel(rank, start + 1900, 1000, launch_ns=called[-1])
    return list(diagnose(run.trace(), select=rules).findings)


@pytest.mark.parametrize(
    ("label", "told"),
    [("FSDP::pre_forward", "set_requires_all_reduce"), ("forward", "bucket_cap_mb")],
)
def test_who_shards_has_no_options_of_ddp(label: str, told: str) -> None:
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.step(rank, i, start, 90, label=label)
        run.step(rank, i, start + 90, 1400, label="backward")
        run.kernel(rank, start, 100)
        its = {"size": 1 << 20, "asynchronous": 1, "launch_ns": BASE_NS + 1000 * (start + 95)}
        run.collective(rank, "all_reduce", start + 100, 400, **its)
        run.kernel(rank, start + 500, 400, launch_ns=BASE_NS + 1000 * (start + 99))
    advice = found(run.trace(), "exposed-communication").advice
    options = {"set_requires_all_reduce", "bucket_cap_mb"}
    assert {its for its in options if its in advice} == {told}


@pytest.mark.parametrize(
    ("label", "told"),
    [("FSDP::post_backward_reduce (a)", "set_requires_gradient_sync"), ("b", "start reduce_scat")],
)
def test_what_fsdp_calls_no_program_can_start(label: str, told: str) -> None:
    run = Tiny(ranks=2, backend="gloo")
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.op(rank, start, 500)
        run.step(rank, i, start + 500, 400, label=label)
        run.collective(rank, "reduce_scatter", start + 500, 400, size=1 << 20)
    assert told in found(run.trace(), "exposed-communication").advice


@pytest.mark.parametrize(("within_us", "told"), [(10, True), (200, False)])
def test_operations_that_are_far_slower_between_hosts_tell_of_the_network(
    within_us: float, told: bool
) -> None:
    run = Tiny(ranks=4, hosts=("a", "b"))
    run.groups = {"near": (0, 1), "next": (2, 3), "far": (0, 2), "farther": (1, 3)}
    for rank, i in product(range(4), range(10)):
        start = 2000 * i
        near, far = "near" if rank < 2 else "next", "farther" if rank % 2 else "far"
        run.kernel(rank, start, 100)
        its = {"size": 1 << 20, "launch_ns": BASE_NS + 1000 * (start + 5)}
        run.collective(rank, "all_reduce", start + 100, within_us, group=near, **its)
        run.collective(rank, "all_reduce", start + 400, 400, group=far, **its)
        run.kernel(rank, start + 800, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert ("between hosts it runs at 2.62 GB/s" in advice) == told
    assert ("all_reduce has 3.93 GB/s (busbw): compare with" in advice) != told
    assert ("NET/Socket" in advice) != told


@pytest.mark.parametrize(("hosts", "size", "told"), [(2, 1, True), (2, 4, False), (1, 1, False)])
def test_a_network_no_faster_than_ethernet_may_be_reached_by_sockets(
    hosts: int, size: int, told: bool
) -> None:
    """All_reduces of so many MB in 400 us."""
    run = Tiny(ranks=2, hosts=("a", "b")[:hosts])
    for rank, i in product(range(2), range(10)):
        start = 2000 * i
        run.kernel(rank, start, 100)
        its = {"size": size << 20, "launch_ns": BASE_NS + 1000 * (start + 5)}
        run.collective(rank, "all_reduce", start + 100, 400, **its)
        run.kernel(rank, start + 500, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert ("NET/Socket" in advice) == told


@pytest.mark.parametrize(
    ("asynchronous", "told"), [(0, "wait for it only where"), (1, "asynchronously already")]
)
@pytest.mark.parametrize("group", ["TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP"])
def test_what_tensor_parallelism_needs_at_once_cannot_be_awaited_later(
    group: str, asynchronous: int, told: str
) -> None:
    """Functional collectives, as DTensor's, call themselves asynchronous."""
    advice = exposed("all_reduce", group=group, size=1 << 20, asynchronous=asynchronous)
    assert ("in chunks" in advice) == group.startswith("TENSOR")
    assert (told in advice) != group.startswith("TENSOR")


@pytest.mark.parametrize("gathered", [1 << 20, 1 << 21])
def test_activations_that_are_gathered_need_no_all_reduce_of_each(gathered: int) -> None:
    """All_gathers of the sizes that backward all_reduces, in a program without DDP."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 3000 * i
        its = {"asynchronous": 1, "launch_ns": BASE_NS + 1000 * (start + 5)}
        run.step(rank, i, start + 1000, 1500, label="## backward ##")
        run.kernel(rank, start, 500)
        run.collective(rank, "all_gather", start + 500, 300, size=gathered, **its)
        run.kernel(rank, start + 800, 600)
        its["launch_ns"] += 1_000_000
        run.collective(rank, "all_reduce", start + 1400, 600, size=1 << 20, **its)
        run.kernel(rank, start + 2000, 500, launch_ns=its["launch_ns"] + 1000)
    advice = found(run.trace(), "exposed-communication").advice
    assert ("row-wise layer follow each column-wise one" in advice) == (gathered == 1 << 20)
    assert ("bucket_cap_mb" in advice) != (gathered == 1 << 20)


def test_what_compute_waits_for_on_its_own_stream_is_named() -> None:
    """As newer versions of PyTorch run what is not asynchronous: no replay shows a saving."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(6)):
        start, launched = 12_000 * i, BASE_NS + 12_000_000 * i
        run.step(rank, i, start, 12_000)
        run.kernel(rank, start, 7000, launch_ns=launched)
        its = {"size": 1 << 20, "stream": 7, "launch_ns": launched + 5_000}
        run.collective(rank, "all_reduce", start + 7000, 4000, **its)
        run.kernel(rank, start + 11_000, 990, launch_ns=launched + 8_000)
    its = found(run.trace(), "exposed-communication")
    assert (its.cost_ns, its.confidence) == (0, "low")
    assert "33 % of the steps' time, mostly all_reduce, which runs on the stream" in its.summary
    assert its.advice.startswith("start all_reduce asynchronously")


@pytest.mark.parametrize("stream", [7, 20])
def test_what_is_needed_at_once_promises_no_saving(stream: int) -> None:
    """On a stream of its own, or on the caller's, where newer versions of PyTorch run it."""
    run = Tiny(ranks=2)
    run.groups = {"TENSOR_MODEL_PARALLEL_GROUP": (0, 1)}
    for rank, i in product((0, 1), range(20)):
        its = {"size": 1 << 20, "group": "TENSOR_MODEL_PARALLEL_GROUP", "stream": stream}
        run.kernel(rank, 1200 * i, 800, launch_ns=BASE_NS + 10_000 * i)
        launch_ns = BASE_NS + 10_000 * i + 5_000
        run.collective(rank, "all_reduce", 1200 * i + 800, 400, launch_ns=launch_ns, **its)
    its = found(run.trace(), "exposed-communication")
    assert (its.cost_ns, its.confidence) == (0, "low")
    assert "33 % of the run's time, mostly tensor parallelism's all_reduce" in its.summary


@pytest.mark.parametrize(("received", "asked"), [(1 << 20, True), (1 << 19, False)])
def test_split_sizes_are_not_asked_of_who_has_them(received: int, asked: bool) -> None:
    advice = exposed("all_to_all", in_bytes=1 << 20, out_bytes=received)
    assert ("split sizes" in advice) == asked


@pytest.mark.parametrize(("behind", "asked"), [("reduce_scatter", False), ("all_reduce", True)])
def test_parameters_that_are_sharded_must_be_gathered(behind: str, asked: bool) -> None:
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.kernel(rank, start, 100)
        launched = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        run.collective(rank, "all_gather", start + 100, 400, size=1 << 20, **launched)
        run.collective(rank, behind, start + 500, 50, size=1 << 20, **launched)
        run.kernel(rank, start + 550, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert ("all_reduce what is only summed" in advice) == asked


@pytest.mark.parametrize(
    ("gathers", "size", "told"), [(2, 99, True), (2, 1 << 24, True), (1, 99, False)]
)
def test_parameters_that_are_gathered_twice_are_to_be_prefetched(
    gathers: int, size: int, told: bool
) -> None:
    """In forward and in backward, as FSDP does; an optimizer that is sharded gathers once."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.kernel(rank, start, 100)
        launched = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        for nth in range(gathers):
            run.collective(rank, "all_gather", start + 100 + 200 * nth, 200, size=size, **launched)
        run.collective(rank, "reduce_scatter", start + 500, 50, size=99, **launched)
        run.kernel(rank, start + 550, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert ("set_modules_to_forward_prefetch" in advice) == told
    assert ("wrap larger modules" in advice) == (told and size < 1_000_000)


def _advice_where_gathers_are_waited_for(labels: Sequence[tuple[int, int, str]]) -> str:
    """What is advised for ten steps that gather in the open, each with these labels.

    A label is its start after that of the step and its duration, in µs, and its name.
    """
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.kernel(rank, start, 100)
        launched = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        for after, duration, label in labels:
            run.step(rank, i, start + after, duration, label=label)
        run.collective(rank, "all_gather", start + 100, 400, size=1 << 24, **launched)
        run.collective(rank, "reduce_scatter", start + 500, 50, size=99, **launched)
        run.kernel(rank, start + 550, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    return found(run.trace(), "exposed-communication").advice


@pytest.mark.parametrize(
    ("units", "told"), [(("",), True), ((" (root)",), True), (("", " (blocks.0)"), False)]
)
def test_a_model_that_is_one_unit_is_to_be_sharded_by_blocks(
    units: tuple[str, ...], told: bool
) -> None:
    """FSDP2 labels the gather of each unit below the model with its name."""
    advice = _advice_where_gathers_are_waited_for(
        [(0, 50, f"FSDP::all_gather{unit}") for unit in units]
    )
    assert ("shards the model as one unit" in advice) == told


@pytest.mark.parametrize(("units", "told"), [(0, True), (3, False)])
def test_a_model_of_fsdp1_is_one_unit_if_no_pass_lies_within_its_own(
    units: int, told: bool
) -> None:
    """As torch.profiler records it: each unit's has this name."""
    within = [(5 + 10 * unit, 8) for unit in range(units)]
    advice = _advice_where_gathers_are_waited_for(
        [(*at, "FullyShardedDataParallel.forward") for at in [(0, 50), *within]]
    )
    assert ("shards the model as one unit" in advice) == told


@pytest.mark.parametrize("name", ["batch_norm_reduce_statistics_kernel", "batch_norm_stats"])
def test_statistics_that_each_layer_synchronises_are_not_put_into_one(name: str) -> None:
    run = Tiny(ranks=2)
    for rank in (0, 1):
        run.step(rank, 0, 0, 9_900)
        for layer in range(20):
            run.kernel(rank, 400 * layer, 100, name=name)
            run.collective(rank, "all_reduce", 400 * layer + 150, 30, size=4096)
    of_layers = "with SyncBatchNorm's" in asked(run.trace(), "all_reduce")
    assert of_layers == ("reduce" in name)


@pytest.mark.parametrize("maps", [10, 9, 0])
def test_who_searches_for_unused_parameters_is_told_not_to(maps: int) -> None:
    """DDP sums a map of parameters in each step then, in int32."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 2000 * i
        run.step(rank, i, start, 1990)
        run.step(rank, i, start, 90, label="DistributedDataParallel.forward")
        run.collective(rank, "all_reduce", start + 900, 700, size=1 << 24)
        if i < maps:
            run.collective(rank, "all_reduce", start + 1700, 20, size=400, dtype="int32")
    advice = asked(run.trace(), "all_reduce")
    assert ("leave out find_unused_parameters=True" in advice) == (maps == 10)


def test_experts_need_their_tokens_at_once() -> None:
    its = {"size": 1 << 20, "in_bytes": 1 << 20, "out_bytes": 1 << 19}
    advice = exposed("all_to_all", group="EXPERT_MODEL_PARALLEL_GROUP", **its)
    assert advice.startswith("overlap it with work that does not need it (shared experts")


def test_what_a_matmul_overlaps_in_chunks_is_overlapped() -> None:
    advice = exposed("all_gather", call="symm_mem::fused_all_gather_matmul", size=1 << 20)
    assert advice.startswith("all_gather is overlapped in chunks with its matmul already")


@pytest.mark.parametrize(("of_rank_1", "asked"), [(1 << 20, True), (1 << 19, False)])
def test_who_sends_unlike_amounts_from_rank_to_rank_has_split_sizes(
    of_rank_1: int, asked: bool
) -> None:
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start, moved = 2000 * i, (1 << 20, of_rank_1)[rank]
        run.kernel(rank, start, 100)
        its = {"size": moved, "in_bytes": moved, "out_bytes": moved}
        its["launch_ns"] = BASE_NS + 1000 * (start + 5)
        run.collective(rank, "all_to_all", start + 100, 400, **its)
        run.kernel(rank, start + 500, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert ("in place of padding" in advice) == asked


@pytest.mark.parametrize("group", ["PIPELINE_MODEL_PARALLEL_GROUP", "other"])
def test_a_pipeline_is_not_asked_for_collectives(group: str) -> None:
    advice = exposed("recv", "send", group=group, size=1 << 20)
    assert ("served one after another" in advice) == (group == "other")


@pytest.mark.parametrize("group", ["PIPELINE_MODEL_PARALLEL_GROUP", "other"])
def test_what_the_next_stage_needs_cannot_be_awaited_later(group: str) -> None:
    advice = exposed("recv", "send", group=group, size=1 << 20)
    assert ("wait for it only where its result is used" in advice) == (group == "other")
    assert ("another micro-batch" in advice) == (group != "other")


def test_what_is_sent_and_received_at_once_needs_no_batch() -> None:
    run = Tiny(ranks=2)
    for i, rank in product(range(10), (0, 1)):
        start = 2000 * i
        launched = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        run.kernel(rank, start, 100)
        for op in ("send", "recv"):
            run.collective(rank, op, start + 100, 400, size=1 << 20, peer=1 - rank, **launched)
        run.kernel(rank, start + 500, 400, launch_ns=BASE_NS + 1000 * (start + 10))
    advice = found(run.trace(), "exposed-communication").advice
    assert "served one after another" not in advice


def delayed(
    *,
    stall_us: float = 0,
    copy_us: float = 0,
    more_us: float = 0,
    since: int = 0,
    size: int = 1 << 26,
) -> Tiny:
    """Rank 1 of three launches later than the others, or copies 8 MB, or computes, longer.

    From one of twelve steps on. Each copies in 500 µs and computes for 1 ms.
    """
    run = Tiny(ranks=3)
    for step in range(STEPS):
        for rank in range(3):
            late = rank == 1 and step >= since
            start, over = 10_000 * step + stall_us * late, 10_000 * step + 8_000
            copied, computed = 500 + copy_us * late, 1000 + more_us * late
            run.step(rank, step, 10_000 * step, 10_000)
            pinned = {"source": "host", "destination": "cuda:0", "memory": "pinned"}
            run.copy(rank, start + 10, copied, kind="HtoD", size=8_000_000, **pinned)
            run.kernel(rank, start + 20 + copied, computed)
            came = start + 30 + copied + computed
            run.collective(rank, "all_reduce", came, over - came, size=size)
    return run


def test_a_late_host_is_told_what_it_does_meanwhile() -> None:
    run = delayed(stall_us=4000)
    assert "look at data loading, logging" in found(run.trace(), "straggler").advice
    for step in range(STEPS):
        run.blocking_call(1, "cudaMalloc", 10_000 * step + 400, 3500)
    straggler = found(run.trace(), "straggler")
    assert straggler.ranks == (1,)
    assert "meanwhile the host is in cudaMalloc for 38.5 ms" in straggler.advice  # of 66 ms


def test_pinned_copies_that_are_slow_on_one_rank_need_no_pinning() -> None:
    """8 MB in 4 ms are 2 GB/s, in 0.5 ms they are 16."""
    its = found(delayed(copy_us=3500).trace(), "straggler")
    assert "its HtoD copies, pinned, make 2.00 GB/s, the others' 16.0 GB/s" in its.advice
    assert "same link" not in its.advice


def test_collectives_as_slow_as_the_copies_of_a_rank_take_the_same_link() -> None:
    its = found(delayed(copy_us=3500, size=4_500_000).trace(), "straggler")
    assert "its collectives, at 2.02 GB/s, seem to take the same link" in its.advice
    assert "from pinned memory" not in its.advice


@pytest.mark.parametrize(
    ("kind", "told"), [("DtoH", "copy into pinned memory"), ("HtoD", "copy from pinned memory")]
)
def test_copies_to_the_host_are_not_to_be_prefetched(kind: str, told: str) -> None:
    run = delayed(copy_us=3500)
    ends = {"source": "cuda:0", "destination": "host"} if kind == "DtoH" else {}
    for row in run.rows["copies"]:
        row |= {"kind": kind, "memory": None, **ends}
    advice = found(run.trace(), "straggler").advice
    assert told in advice
    assert ("prefetch" in advice) == (kind == "HtoD")


def test_copies_of_a_checkpoint_are_part_of_saving_it() -> None:
    run = delayed(copy_us=3500)
    assert "copies" in found(run.trace(), "straggler").advice
    for step in range(STEPS):
        run.step(1, step, 10_000 * step + 5, 4_010, label="save_checkpoint")
    assert found(run.trace(), "straggler").advice.startswith("rank 1: save checkpoints async")


def test_who_computes_longer_in_every_step_runs_nothing_more() -> None:
    its = found(delayed(more_us=3000).trace(), "straggler")
    assert "hardly any kernels run there that others do not run" in its.advice
    assert "clock rates" in its.advice


def test_who_computes_longer_from_some_step_on_runs_nothing_more() -> None:
    its = found(delayed(more_us=3000, since=6).trace(), "straggler")
    assert "rank 1 delays the last 6 of 12 steps by 3 ms, computing" in its.summary
    assert "what runs there is what runs on the others, and no more" in its.advice
    assert "clock rates" in its.advice


@pytest.mark.parametrize("hosts", [True, False])
def test_hosts_that_launch_late_in_turn_need_no_batches_of_like_length(hosts: bool) -> None:
    """In each step one of two ranks is 6 ms behind: its host stalls, or it computes so long."""
    run = Tiny(ranks=2)
    for step in range(STEPS):
        for rank in (0, 1):
            begin, late = 10_000 * step, 6_000 * (step % 2 == rank)
            start = begin + (late if hosts else 0)
            took = 2_000 if hosts else 2_000 + late
            run.step(rank, step, begin, 10_000)
            run.kernel(rank, start + 10, took)
            came = start + took + 20
            run.collective(rank, "all_reduce", came, begin + 9_990 - came, size=1 << 26)
    assert ("hosts launch late in turn" in found(run.trace(), "jitter").advice) == hosts


@pytest.mark.parametrize("hosts", [True, False])
def test_few_steps_in_which_a_host_pauses_are_less_likely_chance(hosts: bool) -> None:
    """In each of six one of four ranks is late by another time: its host stalls, or it computes."""
    run = Tiny(ranks=4)
    for step, late_us in enumerate((17_500, 13_500, 1_500, 0, 9_600, 5_100)):
        for rank in range(4):
            begin, late = 100_000 * step, late_us * (step % 4 == rank)
            start, took = begin + late * hosts, 70_000 + late * (not hosts)
            run.step(rank, step, begin, 100_000)
            run.kernel(rank, start + 10, took)
            came = start + took + 20
            run.collective(rank, "all_reduce", came, begin + 90_000 - came, size=1 << 26)
    named = {its.rule for its in diagnose(run.trace(), ignore=["straggler"]).findings}
    assert ("jitter" in named) == hosts


def test_hosts_that_all_starve_their_gpus_are_not_why_ranks_take_turns() -> None:
    """In each step both hosts stall for 4 ms, and one of two ranks computes 3 ms longer."""
    run = Tiny(ranks=2)
    for step in range(STEPS):
        for rank in (0, 1):
            begin = 10_000 * step
            start, took = begin + 4_000, 2_000 + 3_000 * (step % 2 == rank)
            run.step(rank, step, begin, 10_000)
            run.kernel(rank, start + 10, took)
            came = start + took + 20
            run.collective(rank, "all_reduce", came, begin + 9_990 - came, size=1 << 26)
    assert "batches of equal length" in found(run.trace(), "jitter").advice


@pytest.mark.parametrize(("sends", "said"), [(True, "its own batches"), (False, "the experts'")])
def test_who_sends_more_tokens_first_has_the_larger_batch(sends: bool, said: str) -> None:
    """In each step rank 1 of three computes 3 ms longer before the second of two exchanges."""
    run = Tiny(ranks=3)
    for step, rank in product(range(STEPS), range(3)):
        begin, size, late = 10_000 * step, 1 << 20, rank == 1
        run.step(rank, step, begin, 10_000)
        run.kernel(rank, begin + 10, 500)
        ways = [size * (1 + late), size]
        sent, got = ways if sends else ways[::-1]
        its = {"in_bytes": sent, "out_bytes": got}
        run.collective(rank, "all_to_all", begin + 520, 480, **its)
        took = 4_000 if late else 1_000
        run.kernel(rank, begin + 1_005, took)
        came, its = begin + 1_010 + took, {"in_bytes": got, "out_bytes": sent}
        run.collective(rank, "all_to_all", came, begin + 9_990 - came, **its)
    assert said in found(run.trace(), "straggler").advice


@pytest.mark.parametrize("took_us", [3_000, 6_000])
@pytest.mark.parametrize(("tokens", "told", "groups"), [(3, True, 1), (3, True, 2), (1, False, 1)])
def test_who_gets_more_tokens_and_computes_longer_is_to_get_fewer(
    tokens: int, told: bool, groups: int, took_us: int
) -> None:
    """Rank 1 of three computes longer, behind an all_to_all, and before the next.

    Or one of three in each group.

    Of its work and its bytes what costs more is the finding, and has what both cost.
    """
    run = Tiny(ranks=3 * groups)
    run.groups = {f"ep{i}": (3 * i, 3 * i + 1, 3 * i + 2) for i in range(groups)}
    for step in range(STEPS):
        begin = 10_000 * step
        for rank in range(3 * groups):
            run.step(rank, step, begin, 10_000)
            run.kernel(rank, begin + 10, 500)
            late, group = rank % 3 == 1, f"ep{rank // 3}"
            got, size = (tokens if late else 1) << 20, 1 << 20
            its = {"in_bytes": size, "out_bytes": got, "group": group}
            run.collective(rank, "all_to_all", begin + 520, 480, **its)
            took = took_us if late else 1_000
            run.kernel(rank, begin + 1_005, took)
            came = begin + 1_010 + took
            its |= {"in_bytes": got, "out_bytes": size}
            run.collective(rank, "all_to_all", came, begin + 9_990 - came, **its)
    advice = found(run.trace(), "straggler").advice
    assert ("it receives 1.8 times the mean's bytes in all_to_alls" in advice) == told
    works_us, transfers_us = took_us - 1_000, 8_980 - took_us
    even_us = (480 * (1 - 1 / 3) + transfers_us * (1 - 1 / 1.8)) * told
    first = diagnose(run.trace()).findings[0]
    assert first.rule == ("straggler" if works_us > even_us else "uneven-all-to-all")
    # Of 1.8 and 0.6 times the mean: then each works on the mean.
    works_us *= (1.8 - 1) / (1.8 - 0.6) if told else 1
    assert first.cost_ns == pytest.approx(STEPS * 1e3 * (works_us + even_us), rel=0.02)


def moving_load(*, works_on_bytes: bool, hosts_wait: bool = True) -> Measures:
    """One rank in turn has 1.75 times the mean of two exchanges of 1 ms, and 7 of 4 ms of work."""
    run = Tiny(ranks=4)
    for step, rank in product(range(STEPS), range(4)):
        load = 1.75 if rank == step % 4 else 0.75
        works = 4_000 * load if works_on_bytes else 7_000 if rank == (step + 1) % 4 else 3_000
        begin, has = 10_000 * step, round(load * (1 << 24))
        run.step(rank, step, begin, 10_000)
        host, came = BASE_NS + 1_000 * begin, begin + 1_000 + works
        some = {"in_bytes": 1 << 24, "out_bytes": has, "launch_ns": host}
        run.collective(rank, "all_to_all", begin + 5, 995, **some)
        run.kernel(rank, begin + 1_001, works - 2, launch_ns=host + 1_000)
        some = {"in_bytes": has, "out_bytes": 1 << 24, "launch_ns": host + 2_000}
        run.collective(rank, "all_to_all", came, begin + 9_000 - came, **some)
        if hosts_wait:
            run.blocking_call(rank, "cudaDeviceSynchronize", begin + 4, 8_998)
    return run.trace()


@pytest.mark.parametrize("works_on_bytes", [True, False])
def test_a_load_that_moves_costs_its_bytes_and_the_work_on_them(works_on_bytes: bool) -> None:
    run = moving_load(works_on_bytes=works_on_bytes)
    told = {its.rule: its for its in diagnose(run).findings}
    its = told["uneven-all-to-all"]
    assert (told["jitter"].explained_by == its.rule) == works_on_bytes
    each_us = 2 * 1_000 * (1 - 1 / 1.75) + 3_000 * works_on_bytes
    assert its.cost_ns == pytest.approx(1e3 * STEPS * each_us, rel=0.02)
    assert ("in all that it works on them" in its.summary) == works_on_bytes


def test_what_work_on_bytes_costs_no_trace_without_hosts_waits_tells() -> None:
    its = found(moving_load(works_on_bytes=True, hosts_wait=False), "uneven-all-to-all")
    assert its.cost_ns == pytest.approx(1e3 * STEPS * 2 * 1_000 * (1 - 1 / 1.75), rel=0.02)
    assert "works on them" not in its.summary


@pytest.mark.parametrize(
    ("hosts", "who"),
    [(("a", "b"), "ranks 2–3, all of host b, delay every step"), (("a",), "ranks 2–3 delay every")],
)
def test_ranks_that_are_all_of_one_host_are_named_with_it(hosts: tuple[str, ...], who: str) -> None:
    run = Tiny(ranks=4, hosts=hosts)
    for step in range(STEPS):
        for rank in range(4):
            begin, took = 10_000 * step, 4_000 if rank > 1 else 1_000
            run.step(rank, step, begin, 10_000)
            run.kernel(rank, begin + 10, took)
            came = begin + 20 + took
            run.collective(rank, "all_reduce", came, begin + 8_000 - came, size=1 << 26)
    assert found(run.trace(), "straggler").summary.startswith(who)


def test_only_what_nobody_needs_at_once_is_promised() -> None:
    """Half of what is exposed is tensor parallelism's, half data parallelism's."""
    loop = Loop(5, ranks=4, steps=6, host_leads=True)
    loop.step_us, groups = 10_000, {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    for name, pairs in groups.items():
        loop.run.groups |= {f"{name}{pair}": pair for pair in pairs}

    def together(name: str, us: float) -> None:
        size = size_for(loop, "all_reduce", us, 2)
        for pair in groups[name]:
            loop.together("all_reduce", size, ranks=pair, group=f"{name}{pair}", wait=True)

    for _ in range(loop.steps):
        with loop.step():
            for _ in range(3):
                everyone_computes(loop, 0.25, kernels=2)
                together("tp", 600)
            together("dp", 2_000)
            everyone_computes(loop, 0.05, kernels=1, place="update")
    its = found(loop.trace(), "exposed-communication")
    # As long as those take, and what ranks are apart at them; all would be 1.8 ms more.
    assert 2 < its.cost_ns / 1e6 / loop.steps < 2.7


def test_what_data_parallelism_has_exposed_is_told_beside_what_is_needed_at_once() -> None:
    """2 ms of tensor parallelism's, and 1 ms in which parameters are gathered before forward."""
    loop = Loop(11, ranks=4, steps=6, host_leads=True)
    loop.step_us, groups = 10_000, {"tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))}
    for name, pairs in groups.items():
        loop.run.groups |= {f"{name}{pair}": pair for pair in pairs}

    def together(name: str, op: str, us: float) -> None:
        size = size_for(loop, op, us, 2)
        for pair in groups[name]:
            loop.together(op, size, ranks=pair, group=f"{name}{pair}", wait=True)

    for _ in range(loop.steps):
        with loop.step():
            together("dp", "all_gather", 1_000)
            for _ in range(3):
                everyone_computes(loop, 0.25, kernels=2)
                together("tp", "all_reduce", 700)
            together("dp", "reduce_scatter", 200)
    first, second = diagnose(loop.trace(), select=["exposed-communication"]).findings
    assert "of data parallelism's all_gather runs with no compute beside it" in first.summary
    assert first.cost_ns / 1e6 / loop.steps == pytest.approx(1, rel=0.02)
    assert "mostly tensor parallelism's all_reduce" in second.summary


@pytest.mark.parametrize(("size", "told"), [(20_000, True), (20_000_000, False)])
def test_many_small_messages_of_a_pipeline_ask_for_larger_micro_batches(
    size: int, told: bool
) -> None:
    """Sixteen of 0.2 ms a step, between computing 0.2 ms each."""
    run = Tiny(ranks=2)
    run.groups = {"PIPELINE_MODEL_PARALLEL_GROUP": (0, 1)}
    more: Any = {"group": "PIPELINE_MODEL_PARALLEL_GROUP", "size": size}
    for step, i in product(range(4), range(16)):
        at = 10_000 * step + 410 * i
        for rank in (0, 1):
            if not i:
                run.step(rank, step, at, 9_900)
            run.kernel(rank, at, 198)
            run.collective(rank, ("send", "recv")[rank], at + 200, 198, peer=1 - rank, **more)
    its = found(run.trace(), "exposed-communication")
    assert its.advice.startswith("make micro-batches larger") == told
    assert ("more of them" in its.advice) != told


@pytest.mark.parametrize(("reads", "rules"), [(False, 2), (True, 1)])
def test_what_a_host_awaits_before_it_computes_nothing_hides(reads: bool, rules: int) -> None:
    """1 ms of parameters before forward; the host may read what 40 µs make of them first."""
    run = Tiny(ranks=2)
    run.groups = {"TENSOR_MODEL_PARALLEL_GROUP": (0, 1), "DATA_PARALLEL_GROUP": (0, 1)}
    for step, rank in product(range(6), range(2)):
        start = 10_000 * step
        run.step(rank, step, start, 9_900)
        host = BASE_NS + 1000 * start
        of_data: Any = {"group": "DATA_PARALLEL_GROUP", "size": 1 << 26}
        run.collective(rank, "all_gather", start + 10, 1_000, launch_ns=host + 5_000, **of_data)
        if reads:
            run.kernel(rank, start + 1_014, 40, launch_ns=host + 6_000)
            run.blocking_call(rank, "cudaDeviceSynchronize", start + 7, 1_049)
            host += 1_050_000
        for i in range(4):
            at, launched = start + 1_014 + 60 * reads + 1_600 * i, host + 8_000 + 10 * i
            run.kernel(rank, at, 998, launch_ns=launched)
            group = {"group": "TENSOR_MODEL_PARALLEL_GROUP", "stream": 7}
            at += 1_000
            run.collective(rank, "all_reduce", at, 598, size=1 << 26, launch_ns=launched, **group)
        ends = start + 7_414 + 60 * reads
        run.collective(rank, "reduce_scatter", ends, 100, launch_ns=host + 9_000, **of_data)
        called = (host - BASE_NS) // 1000 + 20
        run.blocking_call(rank, "cudaDeviceSynchronize", called, ends + 102 - called)
    told = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert len(told) == rules
    assert any("data parallelism" in its.summary for its in told) == (rules == 2)


def test_whose_the_exposed_operations_are_hangs_on_what_is_exposed() -> None:
    """Data parallelism's all_reduces take longer, behind compute; tensor parallelism's show."""
    run = Tiny(ranks=2)
    run.groups = {"TENSOR_MODEL_PARALLEL_GROUP": (0, 1), "DATA_PARALLEL_GROUP": (0, 1)}
    for rank, i in product((0, 1), range(20)):
        launched = BASE_NS + 10_000 * i
        run.kernel(rank, 1200 * i, 800, launch_ns=launched)
        at = {"size": 1 << 20, "launch_ns": launched + 5_000}
        run.collective(rank, "all_reduce", 1200 * i + 5, 790, group="DATA_PARALLEL_GROUP", **at)
        tensor = {"group": "TENSOR_MODEL_PARALLEL_GROUP", "stream": 21}
        run.collective(rank, "all_reduce", 1200 * i + 800, 400, **tensor, **at)
    its = found(run.trace(), "exposed-communication")
    assert "mostly tensor parallelism's all_reduce" in its.summary


@pytest.mark.parametrize("unlaunched", [False, True])
def test_gathers_of_parameters_are_waited_for_however_early_they_are(unlaunched: bool) -> None:
    """Four units of 2 ms, each behind its gather of 1 ms: prefetched, the first is left exposed.

    Of some the launch is lost, as where a host runs steps ahead when the recording begins.
    """
    run = Tiny(2)
    for step, rank in product(range(6), range(2)):
        start = step * 12_100
        run.step(rank, step, start, 12_100)
        host = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        if unlaunched and step == 0:
            host = {"launch_ns": NULL}
        for unit in range(4):
            at = start + 10 + unit * 3_000
            run.collective(rank, "all_gather", at, 998, size=1 << 26, **host)
            run.kernel(rank, at + 1_000, 1_998, **host)
        run.collective(rank, "reduce_scatter", start + 12_010, 50, size=1 << 20, **host)
    its = found(run.trace(), "exposed-communication")
    assert its.cost_ns == pytest.approx((5 if unlaunched else 6) * 3e6, rel=0.02)
    assert "forward_prefetch=True;" in its.advice
    assert "backward_prefetch" not in its.advice


@pytest.mark.parametrize("and_a_loss", [False, True])
def test_gathers_one_behind_the_other_that_take_longer_than_compute_hide_behind_nothing(
    and_a_loss: bool,
) -> None:
    """Four units of 1 ms, whose gathers of 2 ms all run from the beginning; then 3 ms backward."""
    run = Tiny(2)
    run.groups |= {"loss": (0, 1)}
    for step, rank in product(range(6), range(2)):
        start = step * 12_100
        run.step(rank, step, start, 12_100)
        host = {"launch_ns": BASE_NS + 1000 * (start + 5)}
        for unit in range(4):
            at = start + 10 + unit * 2_000
            run.collective(rank, "all_gather", at, 1_998, size=1 << 26, **host)
            run.kernel(rank, at + 2_000, 998, **host)
        run.kernel(rank, start + 9_010, 2_998, **host)
        if and_a_loss:
            run.collective(rank, "all_gather", start + 12_070, 9, size=64, group="loss", **host)
        run.collective(rank, "reduce_scatter", start + 12_010, 50, size=1 << 20, **host)
    its = found(run.trace(), "exposed-communication")
    assert its.cost_ns == 0
    assert (
        "mostly all_gather of parameters, longer than the compute that each is for" in its.summary
    )
    assert "links are as fast" in its.advice


@pytest.mark.parametrize(
    ("name", "lasts_us", "before_us", "thread", "said"),
    [
        ("cudaStreamSynchronize", 1_000, 10, 1, True),
        ("hipDeviceSynchronize", 1_000, 10, 1, True),
        ("cudaEventSynchronize", 1_000, 10, 1, False),  # FSDP limits its gathers so
        ("cudaMemcpyAsync", 1_000, 10, 1, False),  # to the GPU
        ("cudaStreamSynchronize", 20, 10, 1, False),  # there was nothing to wait for
        ("cudaStreamSynchronize", 1_000, 900, 1, False),  # the host did much since
        ("cudaStreamSynchronize", 1_000, 10, 2, False),
    ],
)
def test_gathers_that_are_called_when_the_host_has_waited_hide_behind_nothing(
    name: str, lasts_us: float, before_us: float, thread: int, said: bool
) -> None:
    """Each unit's result is read before the next one's gather is called."""
    run = Tiny(2)
    for step, rank in product(range(6), range(2)):
        start = step * 12_100
        run.step(rank, step, start, 12_100)
        for unit in range(4):
            at = start + 10 + unit * 3_000
            host = {"launch_ns": BASE_NS + 1000 * (at - 5)}
            run.collective(rank, "all_gather", at, 998, size=1 << 26, **host)
            run.kernel(rank, at + 1_000, 1_985, **host)
            waited = at - 5 - before_us - lasts_us
            run.blocking_call(rank, name, waited, lasts_us, thread=thread)
        run.collective(rank, "reduce_scatter", start + 12_010, 50, size=1 << 20, **host)
    measures = run.trace()
    rows = rows_of_operation(measures, "all_gather")
    assert behind_waits(measures, rows).startswith(f"the host waits for its GPU ({name}") == said


@pytest.mark.parametrize("reads", [True, False])
def test_text_that_is_generated_needs_all_parameters_for_each_token(reads: bool) -> None:
    """Four gathers of 1 ms, then 16 tokens of 0.5 ms, each of which the host may wait for."""
    run = Tiny(2)
    for step, rank in product(range(6), range(2)):
        start = step * 12_200
        run.step(rank, step, start, 12_200)
        host = BASE_NS + 1000 * (start + 5)
        for unit in range(4):
            at = start + 10 + unit * 1_000
            run.collective(rank, "all_gather", at, 998, size=1 << 26, launch_ns=host)
        for at in range(start + 4_010, start + 12_010, 500):
            run.kernel(rank, at, 498, launch_ns=host)
            if reads:
                called = host // 1000 - BASE_NS // 1000 + 1
                run.blocking_call(rank, "cudaDeviceSynchronize", called, at + 499 - called)
                host = BASE_NS + 1000 * (at + 499)
        run.collective(rank, "reduce_scatter", start + 12_010, 50, size=1 << 20, launch_ns=host)
        begun = 12_015 if reads else 20
        run.blocking_call(rank, "cudaDeviceSynchronize", start + begun, 12_062 - begun)
    told = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert bool(told) == (not reads)


@pytest.mark.parametrize(
    ("forward", "takes", "told"),
    [(5000, 4000, "0.8 ms"), (3700, 20_000, "6 ms"), (1000, 4000, None)],
)
def test_gradients_hide_behind_backward_alone(
    forward: float, takes: float, told: str | None
) -> None:
    """Forward comes before them, and the optimizer waits for them."""
    run = Tiny()
    backward = 6000 - forward
    for i in range(4):
        start = (7_000 + takes) * i
        run.step(0, i, start, 6_900 + takes)
        run.step(0, i, start + forward, backward, label="## backward ##")
        run.kernel(0, start, forward)
        run.kernel(0, start + forward, backward, thread=2)
        run.collective(0, "all_reduce", start + 5200, takes, size=1 << 26)
        run.kernel(0, start + 5300 + takes, 200)
    (finding,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert (finding.cost_ns > 0) == (told is None)
    assert (f"only {told} of backward" in finding.summary) == (told is not None)


@pytest.mark.parametrize(("size", "larger"), [(800_000, True), (8_000_000, False)])
def test_many_small_buckets_could_be_larger_though_backward_hides_little(
    size: int, larger: bool
) -> None:
    """40 all_reduces of 100 µs, one called every 10 µs of 400 µs of backward."""
    run = Tiny()
    for i in range(4):
        start = 9_000 * i
        run.step(0, i, start, 8_900)
        run.step(0, i, start + 3_000, 400, label="## backward ##")
        run.kernel(0, start, 3_000)
        run.kernel(0, start + 3_000, 400, thread=2)
        for call in range(40):
            launched = BASE_NS + 1000 * (start + 3_005 + 10 * call)
            run.collective(0, "all_reduce", start + 3_100 + 100 * call, 99, size=size,
                           launch_ns=launched, asynchronous=1)  # fmt: skip
        run.kernel(0, start + 7_200, 200)
    (finding,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert "of backward runs with no communication beside it" in finding.summary
    advised = finding.advice.startswith("larger buckets (bucket_cap_mb: each step has 40, of 800")
    assert advised == larger


@pytest.mark.parametrize(("sizes", "told"), [((1 << 30, 1 << 20), True), ((1 << 29,) * 2, False)])
def test_a_bucket_that_holds_nearly_all_is_told(sizes: tuple[int, int], told: bool) -> None:
    """The small one runs beside backward, of which the large one leaves nothing to hide behind."""
    run = Tiny(ranks=2)
    for rank, i in product((0, 1), range(10)):
        start = 9000 * i
        run.step(rank, i, start, 8900)
        run.step(rank, i, start, 5000, label="## backward ##")
        called = [BASE_NS + 1000 * (start + us) for us in range(4)]
        small, large = sorted(sizes)
        run.kernel(rank, start + 5, 1990, launch_ns=called[0], thread=2)
        its: dict[str, Any] = {"asynchronous": 1, "launch_ns": called[1]}
        run.collective(rank, "all_reduce", start + 2000, 1900, size=small, **its)
        run.kernel(rank, start + 2005, 1990, launch_ns=called[2], thread=2)
        its = {"asynchronous": 1, "launch_ns": called[3]}
        run.collective(rank, "all_reduce", start + 4005, 4000, size=large, **its)
        run.kernel(rank, start + 8010, 500, launch_ns=called[3])
    (its_finding,) = diagnose(run.trace(), select=["exposed-communication"]).findings
    assert ("100 % of the bytes in one call a step, of 1.07 GB" in its_finding.advice) == told
    assert in_one_bucket(run.trace(), "all_reduce") == told


@pytest.mark.parametrize(
    ("in_a_row", "told"),
    [(5, True), (1, False), (3, False)],  # twice three have something sent back between
)
def test_what_is_collected_again_and_again_could_be_sent_at_once(in_a_row: int, told: bool) -> None:
    gathers = ("gather", lambda rank, step: 1_000 + 2_000 * rank)
    answers = ("broadcast", lambda rank, step: 100.0)
    calls = [*[gathers] * in_a_row, answers] * (5 // in_a_row if in_a_row != 3 else 2)
    its = found(gloo_loop(*calls, ranks=2, steps=STEPS, size=1 << 10), "early-root")
    said = "nothing is sent back between the 5 of each step: send what they carry at once"
    assert (said in its.advice) == told


@pytest.mark.parametrize(("behind_us", "told"), [(700, True), (50, False)])
def test_gathers_of_what_an_optimizer_has_updated_are_told_so(behind_us: int, told: bool) -> None:
    """In each step 1 ms of gathers, before the compute or behind the optimizer's step."""
    run = Tiny(ranks=2)
    for step, rank in product(range(6), range(2)):
        begun = 3_000 * step
        run.step(rank, step, begun, 2_990)
        run.step(rank, step, begun + 600, 20, label="Optimizer.step#Adam.step")
        run.kernel(rank, begun + 10, 1_500)
        its = {"size": 1 << 26, "launch_ns": BASE_NS + 1000 * (begun + behind_us)}
        run.collective(rank, "all_gather", begun + 1_600, 1_300, **its)
    advice = found(run.trace(), "exposed-communication").advice
    assert advice.startswith("it sends what the optimizer has just updated") == told
    assert ("gather what does not change once" in advice) != told
