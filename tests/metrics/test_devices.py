"""Where time went: against a model that counts nanosecond by nanosecond, and by eye."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.measures import Measures
from commtrace.metrics.rank.devices import devices

Make = Callable[..., Measures]

event = st.fixed_dictionaries(
    {
        "rank": st.integers(0, 1),
        "device": st.sampled_from(["cuda:0", "cuda:1"]),
        "stream": st.sampled_from([7, 20]),
        "start_ns": st.integers(0, 40),
        "duration_ns": st.integers(0, 15),
        "step": st.sampled_from([None, 3, 4]),
    }
)
kernel = st.tuples(event, st.sampled_from(["compute", "communication"])).map(
    lambda pair: {**pair[0], "kind": pair[1]}
)
copy = event.map(lambda row: {**row, "kind": "DtoD"})


def nanoseconds(events: list[dict[str, Any]]) -> set[int]:
    return {t for e in events for t in range(e["start_ns"], e["start_ns"] + e["duration_ns"])}


def counted(kernels: list[dict[str, Any]], copies: list[dict[str, Any]]) -> dict[str, Any]:
    compute = nanoseconds([k for k in kernels if k["kind"] == "compute"])
    communication = nanoseconds([k for k in kernels if k["kind"] == "communication"])
    copied = nanoseconds(copies)
    every = [*kernels, *copies]
    span = max(e["start_ns"] + e["duration_ns"] for e in every) - min(e["start_ns"] for e in every)
    overlapped = len(communication & compute)
    return {
        "span_ns": span,
        "compute_ns": len(compute),
        "communication_ns": len(communication),
        "copy_ns": len(copied),
        "overlapped_communication_ns": overlapped,
        "exposed_communication_ns": len(communication - compute),
        "overlap_pct": pytest.approx(100 * overlapped / len(communication))
        if communication
        else None,
    }


def began(events: list[dict[str, Any]]) -> int:
    return min(int(e["start_ns"]) for e in events)


def nothing_ran(mine: list[dict[str, Any]], on_device: list[dict[str, Any]]) -> set[int]:
    last = max(e["start_ns"] + e["duration_ns"] for e in mine)
    return set(range(began(mine), last)) - nanoseconds(on_device)


@settings(max_examples=40, deadline=None)
@given(
    kernels=st.lists(kernel, max_size=12), copies=st.lists(copy, max_size=4), steps=st.booleans()
)
def test_every_nanosecond_is_counted_once(
    make_trace: Make, kernels: list[dict[str, Any]], copies: list[dict[str, Any]], steps: bool
) -> None:
    where = ["rank", "device", *(["step"] if steps else [])]

    def here(events: list[dict[str, Any]], place: dict[str, Any]) -> list[dict[str, Any]]:
        return [e for e in events if all(e[key] == place[key] for key in where)]

    table = devices(make_trace(kernels=kernels, copies=copies), by_step=steps).dicts()
    places = {tuple(e[key] for key in where) for e in [*kernels, *copies]}
    if steps:
        places = {place for place in places if place[2] is not None}
    assert [tuple(row[key] for key in where) for row in table] == sorted(places)
    idle: dict[tuple[Any, ...], set[int]] = {}
    for row in sorted(table, key=lambda row: began(here([*kernels, *copies], row))):
        expected = counted(here(kernels, row), here(copies, row))
        place = (row["rank"], row["device"])
        mine = nothing_ran(
            here([*kernels, *copies], row),
            [e for e in [*kernels, *copies] if (e["rank"], e["device"]) == place],
        ) - idle.setdefault(place, set())
        idle[place] |= mine
        expected["idle_ns"] = len(mine)
        assert {key: row[key] for key in expected} == expected


def test_a_gpu_by_eye(make_trace: Make) -> None:
    #            0         1         2         3         4
    #            0123456789012345678901234567890123456789
    # stream 7   cccccccccc          cccccccccc
    # stream 20       mmmmmmmmmmmmmmmmmmmm
    # stream 7                                 kkkk
    table = devices(
        make_trace(
            kernels=[
                {"kind": "compute", "start_ns": 0, "duration_ns": 10},
                {"kind": "compute", "start_ns": 20, "duration_ns": 10},
                {"kind": "communication", "start_ns": 5, "duration_ns": 20, "stream": 20},
            ],
            copies=[{"kind": "Memset", "start_ns": 33, "duration_ns": 4}],
        )
    )
    assert table.dicts() == [
        {
            "rank": 0,
            "device": "cuda:0",
            "span_ns": 37,
            "compute_ns": 20,
            "communication_ns": 20,
            "copy_ns": 4,
            "overlapped_communication_ns": 10,
            "exposed_communication_ns": 10,
            "overlap_pct": 50.0,
            "idle_ns": 3,
        }
    ]


def test_other_steps_work_is_not_idle(make_trace: Make) -> None:
    #            0         1         2         3
    #            0123456789012345678901234567890
    # step 3     cccccccccc               ccccc
    # step 4               cccccccccc     mmmmmmmmmm
    kernel = {"kind": "compute", "duration_ns": 10}
    table = devices(
        make_trace(
            kernels=[
                {**kernel, "start_ns": 0, "step": 3},
                {**kernel, "start_ns": 10, "step": 4},
                {**kernel, "start_ns": 25, "duration_ns": 5, "step": 3},
                {**kernel, "kind": "communication", "start_ns": 25, "step": 4, "stream": 20},
            ]
        ),
        by_step=True,
    )
    assert table.ints("span_ns").tolist() == [30, 25]
    assert table.ints("idle_ns").tolist() == [5, 0]


def test_communication_on_one_gpu_is_not_hidden_by_compute_on_another(make_trace: Make) -> None:
    table = devices(
        make_trace(
            kernels=[
                {"kind": "compute", "start_ns": 0, "duration_ns": 10, "device": "cuda:1"},
                {"kind": "communication", "start_ns": 0, "duration_ns": 10},
            ]
        )
    )
    assert table.ints("exposed_communication_ns").tolist() == [10, 0]


def test_a_cpu_computes_where_it_does_not_enqueue_or_wait(make_trace: Make) -> None:
    # thread 1   oooooooooooooooooooo   with a call of 5 ns within
    # thread 2          gggggggggg      gloo's own thread
    table = devices(
        make_trace(
            ops=[
                {"kind": "compute", "start_ns": 0, "duration_ns": 20},
                {"kind": "communication", "start_ns": 6, "duration_ns": 5},
                {"kind": "communication", "start_ns": 8, "duration_ns": 9, "thread": 3},
            ],
            collectives=[{"device": "cpu", "stream": 2, "start_ns": 7, "duration_ns": 10}],
        )
    )
    (row,) = table.dicts()
    assert row["device"] == "cpu"
    assert (row["span_ns"], row["compute_ns"], row["communication_ns"]) == (20, 15, 10)
    assert (row["overlapped_communication_ns"], row["exposed_communication_ns"]) == (6, 4)
    assert row["idle_ns"] == 1


def test_the_cpu_of_a_rank_with_a_gpu_tells_only_its_communication(make_trace: Make) -> None:
    table = devices(
        make_trace(
            kernels=[{"kind": "compute", "start_ns": 0, "duration_ns": 10}],
            ops=[{"kind": "communication", "start_ns": 0, "duration_ns": 10}],
            collectives=[{"device": "cpu", "start_ns": 0, "duration_ns": 4}],
        )
    )
    assert table.coded("device").decoded() == ["cpu", "cuda:0"]
    cpu = table.dicts()[0]
    assert cpu.pop("communication_ns") == 4
    assert {cpu[name] for name in cpu if name not in ("rank", "device")} == {None}


def test_devices_are_in_order(make_trace: Make) -> None:
    kernels = [
        {"kind": "compute", "start_ns": 0, "duration_ns": 1, "device": f"cuda:{n}"}
        for n in (10, 9, 1)
    ]
    assert devices(make_trace(kernels=kernels)).coded("device").decoded() == [
        "cuda:1",
        "cuda:9",
        "cuda:10",
    ]


def test_what_was_not_recorded_is_no_idle_time(make_trace: Make) -> None:
    kernels = [{"start_ns": start, "duration_ns": 10, "kind": "compute"} for start in (0, 15, 115)]
    trace = replace(make_trace(kernels=kernels), pauses={0: ((25, 115),)})
    (row,) = devices(trace).dicts()
    assert (row["span_ns"], row["compute_ns"], row["idle_ns"]) == (35, 30, 5)
