"""Of the original files Perfetto gets every event, on the run's clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace.run import load
from commtrace.viewer.timeline import write_timeline

Query = Callable[..., list[list[tuple[Any, ...]]]]

BASE_NS = 1_700_000_000_123_456_789
PROBLEMS = "select name as n, value as v from stats where severity != 'info' and value > 0"
SLICES = """
select t.name as track, s.ts as ts, s.dur as dur, s.name as name from slice s
join track t on s.track_id = t.id where t.name not in ('findings') order by s.ts, t.name
"""
ARROWS = """
select a.name as tail, b.name as head from flow
join slice a on slice_out = a.id join slice b on slice_in = b.id order by 1, 2
"""
COUNTERS = """
select t.name as track, c.ts as ts, c.value as value from counter c
join counter_track t on c.track_id = t.id where t.name glob '*memory*' order by ts
"""
WITH_CATEGORY = """
select count() as n from slice s join args using (arg_set_id) where key = 'debug.category'
"""


def slice_(name: str, start_us: float, us: float, tid: Any = 7, **more: Any) -> dict[str, Any]:
    at = {"pid": 42, "tid": tid, "ts": start_us, "dur": us}
    return {"ph": "X", "cat": "cpu_op", "name": name, **at, **more}


def arrow(phase: str, at_us: float, tid: int) -> dict[str, Any]:
    end = {"ph": phase, "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 42, "tid": tid}
    return {**end, "ts": at_us, **({"bp": "e"} if phase == "f" else {})}


EVENTS = [
    {"ph": "M", "name": "process_labels", "pid": 42, "tid": 0, "args": {"labels": "CPU"}},
    {"ph": "M", "name": "thread_name", "pid": 42, "tid": 7, "args": {"name": "python "}},
    slice_("launch", 1.001, 20),
    slice_("over", 15, 10.5),  # overlaps without nesting
    slice_("inside", 16, 2, cat="python_function"),
    slice_("kernel", 30, 2, tid=8),
    arrow("s", 1.001, 7),
    arrow("f", 30, 8),
    {"ph": "i", "name": "moment", "cat": "cpu_instant_event", "pid": 42, "tid": 7, "ts": 40},
    {"ph": "C", "name": "memory", "pid": 42, "tid": 7, "ts": 41, "args": {"bytes": 17}},
    {"ph": "X", "name": "odd", "pid": [1], "tid": {}, "ts": 50, "dur": 1, "args": [1]},
    {"ph": "B", "name": "begun", "pid": 42, "tid": 7, "ts": 60},
    {"ph": "X", "name": "timeless", "pid": 42, "tid": 7, "ts": "soon", "dur": 1},
]


@pytest.mark.parametrize("keep", ["operators", "everything"])
def test_every_event_arrives(perfetto: Query, tmp_path: Path, keep: str) -> None:
    for rank in (0, 1):
        trace = {
            "distributedInfo": {"rank": rank},
            "baseTimeNanoseconds": BASE_NS + rank,
            "traceEvents": EVENTS,
        }
        (tmp_path / f"{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    file = tmp_path / "run.pftrace.gz"
    left_out = write_timeline(load(tmp_path).analysis(select=["desync"]), file, keep)
    assert "not drawn, without a kind or a usable time: 4 events" in left_out
    problems, slices, arrows, counters = perfetto(file, PROBLEMS, SLICES, ARROWS, COUNTERS)
    assert problems == []
    found = {(track, ts - BASE_NS, dur, name) for track, ts, dur, name in slices}
    for rank in (0, 1):
        expected = {
            (f"rank {rank} python", 1_001 + rank, 20_000, "launch"),
            (f"rank {rank} python", 15_000 + rank, 10_500, "over"),
            (f"rank {rank} 8", 30_000 + rank, 2_000, "kernel"),
            (f"rank {rank} {{}}", 50_000 + rank, 1_000, "odd"),
        }
        beyond = {
            (f"rank {rank} python", 16_000 + rank, 2_000, "inside"),
            (f"rank {rank} python", 40_000 + rank, 0, "moment"),
        }
        assert expected <= found
        assert (beyond <= found) == (keep == "everything")
    assert len(slices) == (12 if keep == "everything" else 8)
    assert arrows == [("launch", "kernel")] * 2
    assert counters == [
        (f"rank {rank} memory bytes", BASE_NS + 41_000 + rank, 17.0) for rank in (0, 1)
    ]


def test_a_real_trace_loses_nothing(perfetto: Query, real_traces: Path, tmp_path: Path) -> None:
    path = real_traces / "hta_a100_resnet_nccl_metadata.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    file = tmp_path / "run.pftrace.gz"
    assert not [
        line
        for line in write_timeline(load(path).analysis(select=["desync"]), file, "everything")
        if line.startswith("not drawn")
    ]
    problems, (many,) = perfetto(file, PROBLEMS, WITH_CATEGORY)
    assert problems == []
    assert many[0] == sum(event["ph"] in "Xi" and "cat" in event for event in events)
