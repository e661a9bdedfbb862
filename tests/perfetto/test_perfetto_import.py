"""Perfetto imports what ``commtrace open`` serves, and drops nothing of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.viewer import merge

Query = Callable[..., list[list[tuple[Any, ...]]]]

PROBLEMS = "select name, value from stats where severity != 'info' and value > 0"
SLICES = "select ts, dur, slice.name from slice order by ts, dur desc"
PROCESSES = "select name from process where name is not null order by name"


def test_every_slice_arrives_to_the_nanosecond(perfetto: Query, tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [
            {"ph": "X", "name": name, "pid": 9, "tid": 9, "ts": start_us + rank, "dur": us}
            for name, start_us, us in (("isend", 100.001, 10.5), ("irecv", 105.57, 10.29))
        ]
        trace = {"traceEvents": events, "distributedInfo": {"rank": rank}}
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    merge({rank: tmp_path / f"{rank}.json" for rank in (0, 1)}, tmp_path / "merged.json.gz")
    problems, slices, processes = perfetto(tmp_path / "merged.json.gz", PROBLEMS, SLICES, PROCESSES)
    assert problems == []
    assert slices == [
        (0, 10_500, "isend"),
        (1_000, 10_500, "isend"),
        (5_569, 10_290, "irecv"),
        (6_569, 10_290, "irecv"),
    ]
    assert processes == [("rank 0 9",), ("rank 1 9",)]


@pytest.mark.parametrize("name", ["hta_16gpu_three_nccl_streams", "tracelens_mi300*"])
def test_real_traces_lose_nothing(
    perfetto: Query, real_traces: Path, tmp_path: Path, name: str
) -> None:
    file = next(real_traces.glob(f"{name}.json.gz"))
    target = tmp_path / "merged.json.gz"
    assert merge({0: file}, target) == 0
    assert perfetto(target, PROBLEMS) == [[]]


def test_a_recording_loses_nothing(perfetto: Query, recorded: Path, tmp_path: Path) -> None:
    files = sorted((recorded / "send_recv" / "gloo-4").glob("*.json.gz"))
    assert files
    target = tmp_path / "merged.json.gz"
    assert merge(dict(enumerate(files)), target) == 0
    assert perfetto(target, PROBLEMS) == [[]]


def test_odd_events_arrive_too(perfetto: Query, tmp_path: Path) -> None:
    odd = [
        {"pid": [1], "tid": {}},
        {"tid": 1.5},
        {"args": None},
        {"args": [1]},
        {"id": [], "s": "x"},
    ]
    events = [
        {"ph": "X", "name": str(n), "pid": 9, "tid": 9, "ts": n, "dur": 1} | its
        for n, its in enumerate(odd)
    ]
    (tmp_path / "0.json").write_text(json.dumps({"traceEvents": events})[:-1])
    assert merge({0: tmp_path / "0.json"}, tmp_path / "merged.json.gz") == 0
    problems, slices = perfetto(tmp_path / "merged.json.gz", PROBLEMS, SLICES)
    assert problems == []
    assert slices == [(1000 * n, 1000, str(n)) for n in range(len(odd))]
