"""What a label cost is what its host launched, wherever and whenever that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.measures import Measures
from commtrace.metrics.rank.labels import is_own
from commtrace.metrics.run.ranges import ranges
from commtrace.synthetic import Tiny

Make = Callable[..., Measures]
Row = dict[str, Any]


def label(name: str | None, start: int, end: int, **more: Any) -> Row:
    return {"label": name, "start_ns": start, "duration_ns": end - start, "thread": 1, **more}


def launched(at: int, start: int, end: int, kind: str = "compute", **more: Any) -> Row:
    return {
        "launch_ns": at,
        "start_ns": start,
        "duration_ns": end - start,
        "kind": kind,
        "thread": 1,
        **more,
    }


def of(run: Measures, *columns: str) -> dict[tuple[str, str | None], tuple[Any, ...]]:
    return {(r["label"], r["parent"]): tuple(r[c] for c in columns) for r in ranges(run).dicts()}


TIMES = ("duration_ns_p50", "compute_ns", "exposed_communication_ns", "overlapped_communication_ns")


def test_a_ranges_work_is_what_its_host_launched_however_much_later_it_runs(
    make_trace: Make,
) -> None:
    steps = [label("a", 0, 10), label("b", 10, 30)]
    kernels = [
        launched(5, 100, 150),
        launched(6, 120, 160, "communication", stream=20),
        launched(20, 150, 170),
    ]
    run = make_trace(steps=steps, kernels=kernels)
    # The compute that hides a's communication is b's from 150 on.
    assert of(run, *TIMES, "host_ns_p50") == {
        ("a", None): (60, 50, 0, 40, 10),
        ("b", None): (20, 20, 0, 0, 20),
    }


def test_a_host_that_stays_longer_than_its_work_counts(make_trace: Make) -> None:
    run = make_trace(steps=[label("load", 0, 500)], kernels=[launched(5, 10, 20)])
    assert of(run, "duration_ns_p50") == {("load", None): (500,)}


def test_what_is_within_counts_for_both_and_hangs_below_the_programs_own(make_trace: Make) -> None:
    steps = [
        label(None, 0, 100, step=1),
        label("fused", 0, 50),
        label("DistributedDataParallel.forward", 5, 45),
        label("layer", 10, 20),
        label("apart", 50, 90),
    ]
    kernels = [launched(12, 112, 120), launched(30, 130, 140)]
    run = make_trace(steps=steps, kernels=kernels)
    assert of(run, "compute_ns", "ratio_to_fastest") == {
        ("fused", None): (18, 50 / 40),
        ("layer", "fused"): (8, 1.0),
        ("apart", None): (0, 1.0),
        ("DistributedDataParallel.forward", "fused"): (18, None),
    }
    assert [row["label"] for row in ranges(run).dicts()] == [
        "fused",
        "layer",
        "apart",
        "DistributedDataParallel.forward",
    ]


def test_autograds_threads_work_for_the_range_that_waits_for_them(make_trace: Make) -> None:
    steps = [
        label(None, 0, 100, step=1),
        label("backward", 50, 90),
        label("FSDP::post_backward", 60, 65, thread=2),
        label("loader", 55, 70, thread=3),
    ]
    kernels = [
        launched(61, 161, 163, thread=2),
        launched(80, 180, 184, thread=2),
        launched(62, 200, 208, thread=3),
    ]
    run = make_trace(steps=steps, kernels=kernels)
    assert of(run, "compute_ns") == {
        ("backward", None): (6,),
        ("loader", None): (8,),
        ("FSDP::post_backward", "backward"): (2,),
    }


def test_labels_within_themselves_end(make_trace: Make) -> None:
    run = make_trace(steps=[label("f", 0, 90), label("f", 10, 40), label("f", 20, 30)])
    assert of(run, "count") == {("f", None): (1,), ("f", "f"): (2,)}


def test_ranks_that_do_nothing_in_a_label_do_not_count(make_trace: Make) -> None:
    steps = [label("recv", 0, 100, rank=0), label("recv", 0, 2, rank=1)]
    steps += [label("idle", 200, 210, rank=rank) for rank in (0, 1)]
    kernels = [launched(1, 10, 90, "communication", rank=0)]
    run = make_trace(steps=steps, kernels=kernels)
    assert of(run, "count", "duration_ns_p50") == {
        ("recv", None): (1, 100),
        ("idle", None): (2, 10),
    }


def both_ways() -> Tiny:
    """Two ranks sum 1 MB and, twice as fast, half of it, each under its label."""
    tiny = Tiny(ranks=2)
    for step in range(4):
        for rank in (0, 1):
            start = 10_000 * step
            tiny.step(rank, step, start, 9_000)
            for name, at, size in (("fp32", 100, 1 << 20), ("fp16", 5_000, 1 << 19)):
                tiny.step(rank, step, start + at - 50, 3_000, name)
                tiny.collective(rank, "all_reduce", start + at, size >> 10, size=size)
    return tiny


def test_bytes_and_bandwidth_of_a_label() -> None:
    run = both_ways().trace()
    found = of(run, "count", "size_bytes", "busbw_gb_s", "ratio_to_fastest")
    gb_s = (1 << 20) / ((1 << 10) * 1e3)
    assert found == {
        ("fp32", None): (8, 1 << 20, pytest.approx(gb_s), 1.0),
        ("fp16", None): (8, 1 << 19, pytest.approx(gb_s), 1.0),
    }


def test_a_bandwidth_is_a_lower_bound_where_a_rank_is_missing() -> None:
    run = both_ways()
    assert of(run.trace(), "bound") == {("fp32", None): ("exact",), ("fp16", None): ("exact",)}
    alone = Tiny(ranks=2)
    alone.step(0, 0, 0, 9_000)
    alone.step(0, 0, 50, 3_000, "fp32")
    alone.collective(0, "all_reduce", 100, 1_000, size=1 << 20)
    assert of(alone.trace(), "bound") == {("fp32", None): ("lower",)}


def test_only_the_ways_that_a_workload_compares_are_compared() -> None:
    tiny = both_ways()
    answer = ["duration_ns_p50", "fp32"]
    tiny.manifest = {"workload": {"question": "Which?", "answer": answer}}
    found = of(tiny.trace(), "ratio_to_fastest")
    assert found == {("fp32", None): (1.0,), ("fp16", None): (None,)}


@pytest.mark.parametrize("manifest", [{"workload": 7}, {"workload": {"question": 7}}, {}])
def test_a_manifest_that_asks_nothing(manifest: dict[str, Any]) -> None:
    tiny = both_ways()
    tiny.manifest = manifest
    assert of(tiny.trace(), "count")


def test_no_labels_are_no_rows(make_trace: Make) -> None:
    assert not len(ranges(make_trace()))
    assert not len(ranges(make_trace(steps=[label(None, 0, 10, step=1)])))


def test_where_compute_is_unknown_so_is_overlap(make_trace: Make) -> None:
    gloo = {"launch_ns": 5, "start_ns": 6, "duration_ns": 20, "op": "all_reduce", "device": "cpu"}
    run = make_trace(
        steps=[label("cpu tensors", 0, 30), label("gpu", 40, 50)],
        kernels=[launched(41, 42, 45)],
        collectives=[gloo],
    )
    assert of(run, *TIMES[1:]) == {
        ("cpu tensors", None): (0, None, None),
        ("gpu", None): (3, 0, 0),
    }


@pytest.mark.parametrize(
    "name",
    ["forward", "## forward ##", "reduce + broadcast", "Optimizer", "torch", "FSDP", "my_data: 3"],
)
def test_the_programs_own_labels(name: str) -> None:
    assert is_own(name)


@pytest.mark.parametrize(
    "name",
    [
        "DistributedDataParallel.forward",
        "Optimizer.step#AdamW.step",
        "Optimizer.zero_grad#SGD.zero_grad",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "FSDP::all_gather_copy_out",
        "Torch-Compiled Region: 0/0",
        "## Call CompiledFxGraph fabc ##",
        "gc_data: compile_id=0/6",
        "backend_compile_data: fn_name=OutputGraph.call_user_compiler, compile_id=0/8",
        "compile_fx.<locals>.bw_compiler (dynamo_timed)",
        "[pl][profile][Strategy]DDPStrategy.training_step",
    ],
)
def test_labels_that_pytorch_sets(name: str) -> None:
    assert not is_own(name)
