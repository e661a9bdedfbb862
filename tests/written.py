"""Traces of GPUs written event by event, as ``torch.profiler`` would."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.run import load

HOST, COMPUTES, COMMUNICATES = 1, 7, 20
"""The host's thread, and two streams."""

Event = dict[str, Any]


def event(category: str, name: str, at_us: float, long_us: float, **args: Any) -> Event:
    """One of the host's, or of the stream in its arguments."""
    its = {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": long_us, "args": args}
    where = {"pid": 0 if category == "kernel" else HOST, "tid": args.get("stream", HOST)}
    return {**its, **where}


def found_on_two(folder: Path, steps: Iterable[list[Event]], rule: str) -> list[Finding]:
    """What a rule finds where two ranks run the same steps."""
    events = [event for step in steps for event in step]
    for rank in (0, 1):
        its = {"backend": "nccl", "rank": rank, "world_size": 2}
        trace = {"distributedInfo": its, "traceEvents": events}
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return list(diagnose(load(folder).measures, select=[rule]).findings)
