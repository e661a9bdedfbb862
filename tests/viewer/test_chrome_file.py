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
from commtrace.synthetic import Tiny
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


def test_where_in_the_program_each_rank_was(tmp_path: Path) -> None:
    """Looks at one line in a row are one slice, from when the one before it was."""
    run = Tiny(ranks=2, backend="gloo")
    for rank in (0, 1):
        run.step(rank, 1, 0, 60_000)
        same = {"thread": 1, "asynchronous": 0}
        run.collective(rank, "all_reduce", 45_000, 10_000, size=1 << 20, **same)
    for at_us, line in ((10_000, "a.py:1 in f"), (20_000, "a.py:1 in f"), (31_000, "a.py:9 in g")):
        run.look(0, at_us, line, 10_000)
    file = tmp_path / "run.trace.json.gz"
    write_timeline(Run(run.trace(), "mine").analysis(select=["desync"]), file)
    events = json.loads(gzip.decompress(file.read_bytes()), parse_float=str)["traceEvents"]
    lines = [e for e in events if e["ph"] == "X" and e["name"].startswith("a.py")]
    assert [(its["name"], ns(str(its["dur"]))) for its in lines] == [
        ("a.py:1 in f", 20_000_000),
        ("a.py:9 in g", 10_000_000),
    ]
