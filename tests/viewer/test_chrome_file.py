"""A timeline as Chrome's JSON: the same slices, arrows and counters, exact to the nanosecond."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commtrace.metrics.run.waits import matched
from commtrace.run import Run
from commtrace.viewer.timeline import write_timeline


def test_a_recording(measured: Callable[[Path], Run], recorded: Path, tmp_path: Path) -> None:
    analysis = measured(recorded / "straggler" / "gloo-4").analysis(select=["desync"])
    file = tmp_path / "run.trace.json.gz"
    write_timeline(analysis, file)
    text = gzip.decompress(file.read_bytes())
    events: list[dict[str, Any]] = json.loads(text, parse_float=str)["traceEvents"]
    waits = matched(analysis.measures).waits.frame()
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["all ranks", "rank 0", "rank 1", "rank 2", "rank 3"]
    operations = [e for e in events if e["ph"] == "X" and "matched_by" in e["args"]]
    base = min(ns(event["ts"]) for event in operations)
    first = waits["arrival_ns"].min()
    assert Counter((ns(e["ts"]) - base, ns(e["dur"])) for e in operations) == Counter(
        zip(
            waits["arrival_ns"] - first,
            waits["end_ns"] - waits["arrival_ns"],
            strict=True,
        )
    )
    tails, heads = ([e for e in events if e["ph"] == phase] for phase in "sf")
    assert {e["id"] for e in tails} == {e["id"] for e in heads}
    assert len(heads) == (waits["wait_ns"].fillna(0) > 0).sum()
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert "rank 0 busbw (GB/s)" in counters
    assert all(ns(event["ts"]) >= 0 for event in events if "ts" in event)


def ns(micros: str) -> int:
    """Without floating point, in which they are not exact."""
    whole, _, part = micros.partition(".")
    return int(whole) * 1000 + int(part)
