"""Queueing is from launch to start, execution from start to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from commtrace.measures import Measures
from commtrace.metrics.rank.queueing import queueing
from commtrace.reader import read


def test_each_kind_by_itself(make_trace: Callable[..., Measures]) -> None:
    def called(launch: int | None, start: int, end: int, **more: Any) -> dict[str, Any]:
        times = {"launch_ns": launch, "start_ns": start, "duration_ns": end - start}
        return {"op": "all_reduce", "group": "0", "size_bytes": 8, **times, **more}

    trace = make_trace(
        collectives=[
            called(0, 10, 15),
            called(20, 50, 57, rank=1),
            called(60, 160, 169),
            called(None, 5, 6),
            called(0, 200, 201, op="barrier", size_bytes=None, group=None),
        ]
    )
    barrier, all_reduce = queueing(trace).dicts()
    assert (barrier["op"], barrier["group"], barrier["size_bytes"]) == ("barrier", None, None)
    assert (barrier["count"], barrier["queue_ns_p50"], barrier["duration_ns_p50"]) == (1, 200, 1)
    assert (all_reduce["count"], all_reduce["queue_ns_p50"]) == (3, 30)
    assert (all_reduce["queue_ns_p95"], all_reduce["duration_ns_p50"]) == (93, 7)
    assert not len(queueing(make_trace()))


def test_gloo_starts_after_its_call(recorded: Path) -> None:
    for name in ("overlap", "isend_irecv", "send_recv"):
        called = read([recorded / name / "gloo-4"]).collectives
        assert called["launch_ns"].notna().all()
        assert (called["start_ns"] > called["launch_ns"]).all()
