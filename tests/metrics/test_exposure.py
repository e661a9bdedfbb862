"""Exposed time is split to the last nanosecond, and goes where the answer can be seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.measures import Measures
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.exposure import By, exposure
from commtrace.metrics.rank.phases import phases

Make = Callable[..., Measures]
Row = dict[str, Any]

GROUPS = [
    {"rank": 0, "group": "0", "size": 4, "ranks": "0,1,2,3", "description": "default_pg"},
    {"rank": 0, "group": "1", "size": 2, "ranks": "0,1", "description": "mesh_tp"},
    {"rank": 0, "group": "1", "size": 2, "ranks": "0,2", "description": "mesh_dp"},
]


def on_gpu(start: int, duration: int, stream: int = 20, **more: Any) -> Row:
    """A collective that a kernel does."""
    return {
        "start_ns": start,
        "duration_ns": duration,
        "stream": stream,
        "kind": "communication",
        "op": "all_reduce",
        "launch_ns": start,
        "rank": 0,
        **more,
    }


def trace_of(make_trace: Make, called: list[Row], compute: list[Row], **tables: Any) -> Measures:
    kernels = [{k: v for k, v in row.items() if k != "op"} for row in called]
    kernels += [{**row, "kind": "compute"} for row in compute]
    return make_trace(kernels=kernels, collectives=called, **tables)


def exposed(trace: Measures, by: Any, *key: str) -> dict[Any, int]:
    found = exposure(trace, by=by).dicts()
    return {tuple(row[k] for k in key or (by,)): row["exposed_ns"] for row in found}


def test_time_that_operations_share_is_split_equally(make_trace: Make) -> None:
    # all_reduce 0-100, all_gather 60-120, compute 0-40 and 110-200
    called = [on_gpu(0, 100), on_gpu(60, 60, 21, op="all_gather")]
    trace = trace_of(make_trace, called, [on_gpu(0, 40, 7), on_gpu(110, 90, 7)])
    assert exposed(trace, "op") == {("all_reduce",): 20 + 40 // 2, ("all_gather",): 10 + 40 // 2}
    parts = exposure(trace, by="op").dicts()
    assert [row["communication_ns"] for row in parts] == [100, 60]
    assert devices(trace).dicts()[0]["exposed_communication_ns"] == 70


def test_where_only_a_kernel_tells_what_ran_counts(make_trace: Make) -> None:
    called = [on_gpu(0, 10, op=None, executed="broadcast"), on_gpu(20, 7, op=None)]
    assert exposed(trace_of(make_trace, called, []), "op") == {("broadcast",): 10, (None,): 7}


def test_a_group_is_its_name_and_its_ranks(make_trace: Make) -> None:
    called = [
        on_gpu(0, 10, group="0", group_size=4),
        on_gpu(20, 5, group="1", group_size=2),
        on_gpu(40, 3),
    ]
    trace = trace_of(make_trace, called, [], groups=GROUPS[:2])
    assert exposed(trace, "group", "group", "ranks", "description") == {
        ("0", "0,1,2,3", "default_pg"): 10,
        ("1", "0,1", "mesh_tp"): 5,
        (None, None, None): 3,
    }
    ambiguous = trace_of(make_trace, called, [], groups=GROUPS)
    assert exposed(ambiguous, "group", "group", "ranks")["1", None] == 5


def test_without_compute_told_nothing_is_known_to_be_exposed(make_trace: Make) -> None:
    gloo = {"rank": 0, "device": "cpu", "stream": 3, "start_ns": 0, "duration_ns": 9, "op": "send"}
    trace = make_trace(kernels=[on_gpu(50, 5, kind="compute")], collectives=[gloo])
    (part,) = exposure(trace, by="op").dicts()
    assert (part["device"], part["communication_ns"], part["exposed_ns"]) == ("cpu", 9, None)


def test_labels_tell_phases_and_the_innermost_wins(make_trace: Make) -> None:
    def label(name: str | None, start: int, end: int) -> Row:
        return {
            "label": name,
            "start_ns": start,
            "duration_ns": end - start,
            "step": 1,
            "thread": 1,
        }

    steps = [
        label(None, 0, 100),
        label("## forward ##", 0, 40),
        label("FSDP::post_backward", 20, 30),
        label("forward_backward", 40, 60),
        label("Optimizer.step#SGD.step", 60, 80),
    ]
    called = [on_gpu(t, 1, launch_ns=t) for t in (5, 25, 35, 50, 70, 90)]
    called.append(on_gpu(95, 1, launch_ns=None))
    trace = trace_of(make_trace, called, [], steps=steps)
    assert phases(trace).decoded() == [
        "forward",
        "backward",
        "forward",
        None,
        "optimizer",
        None,
        None,
    ]
    assert exposed(trace, "phase") == {
        ("forward",): 2,
        ("backward",): 1,
        ("optimizer",): 1,
        (None,): 3,
    }


def test_autograd_tells_the_backward(make_trace: Make) -> None:
    step = {"start_ns": 0, "duration_ns": 100, "step": 1, "thread": 1}
    label = {**step, "label": "optimizer", "start_ns": 50, "duration_ns": 10}
    called = [on_gpu(10, 1, thread=1), on_gpu(20, 1, thread=2), on_gpu(52, 1, thread=2)]
    kernels = [{k: v for k, v in row.items() if k != "op"} for row in called]
    called = [{k: v for k, v in row.items() if k != "thread"} for row in called]
    trace = make_trace(kernels=kernels, collectives=called, steps=[step, label])
    assert phases(trace).decoded() == [None, "backward", "optimizer"]
    without_steps = make_trace(kernels=kernels, collectives=called)
    assert phases(without_steps).decoded() == [None, None, None]

    node = {"name": "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"}
    ops = [{**node, "start_ns": 8, "duration_ns": 5, "kind": "compute"}]
    gloo = [on_gpu(t, 1, device="cpu", launch_ns=t) for t in (9, 15)]
    assert phases(make_trace(collectives=gloo, ops=ops)).decoded() == ["backward", None]


event = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 1),
        "device": st.sampled_from(["cuda:0", "cuda:1"]),
        "stream": st.sampled_from([7, 20]),
        "start_ns": st.integers(0, 40),
        "duration_ns": st.integers(0, 15),
        "op": st.sampled_from(["all_reduce", "send", None]),
        "group": st.sampled_from(["0", "1", None]),
        "step": st.sampled_from([None, 3, 4]),
    }
)


@settings(max_examples=40, deadline=None)
@given(
    called=st.lists(event, max_size=8),
    compute=st.lists(event, max_size=5),
    by=st.sampled_from(get_args(By)),
)
def test_the_parts_are_the_whole(
    make_trace: Make, called: list[Row], compute: list[Row], by: By
) -> None:
    marked = [{**row, "kind": "communication", "launch_ns": row["start_ns"]} for row in called]
    trace = trace_of(make_trace, marked, compute)
    sums: dict[tuple[int, str], int] = defaultdict(int)
    for row in exposure(trace, by=by).dicts():
        assert 0 <= row["exposed_ns"] <= row["communication_ns"]
        sums[row["rank"], row["device"]] += row["exposed_ns"]
    for row in devices(trace).dicts():
        assert sums[row["rank"], row["device"]] == row["exposed_communication_ns"]


@pytest.mark.parametrize("by", get_args(By))
def test_nothing_recorded_is_nothing_exposed(make_trace: Make, by: By) -> None:
    assert not len(exposure(make_trace(), by=by))
