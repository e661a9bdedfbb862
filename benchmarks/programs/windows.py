"""Every few consecutive steps of a recording, as if no others had been recorded."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.programs.trial import Trial, analysed

__all__ = ["STEPS", "cut", "windows"]

STEPS = 3
_STEP = "ProfilerStep#"

Event = dict[str, Any]


def windows(recording: Path) -> list[Trial]:
    """What the diagnosis says of each window of three steps."""
    traces = {path: _read(path) for path in sorted(recording.rglob("rank*.json.gz"))}
    shared = set.intersection(*(set(_steps(trace)) for trace in traces.values()))
    trials = []
    for first in sorted(shared):
        if shared >= set(range(first, first + STEPS)):
            with tempfile.TemporaryDirectory(prefix="commtrace-window-") as scratch:
                part = Path(scratch, "window")
                shutil.copytree(recording, part, ignore=shutil.ignore_patterns("*.gz", "*.log"))
                for path, trace in traces.items():
                    text = json.dumps(cut(trace, first, first + STEPS - 1))
                    (part / path.relative_to(recording)).with_suffix("").write_text(text, "utf-8")
                trials.append(analysed(part))
    return trials


def cut(trace: Event, first: int, last: int) -> Event:
    """What began in these steps: events, arrows between them, and what the flight recorder has."""
    steps = _steps(trace)
    begin, end = steps[first]["ts"], steps[last]["ts"] + steps[last]["dur"]
    events = [
        event for event in trace["traceEvents"] if event["ph"] == "M" or begin <= event["ts"] <= end
    ]
    whole = {event["id"] for event in events if event["ph"] == "s"}
    whole &= {event["id"] for event in events if event["ph"] == "f"}
    kept = [event for event in events if event["ph"] not in "sf" or event["id"] in whole]
    return {**trace, "traceEvents": kept, "commtrace": _ours(trace, begin, end, (first, last))}


def _ours(trace: Event, begin: float, end: float, steps: tuple[int, int]) -> Event:
    ours = trace["commtrace"]
    noted = ours["flight_recorder"]
    if noted is None:
        return {**ours, "steps": list(steps)}
    base = trace["baseTimeNanoseconds"]
    entries = [
        entry
        for entry in noted["entries"]
        if begin <= (entry["time_created_ns"] - base) / 1e3 <= end
    ]
    return {**ours, "steps": list(steps), "flight_recorder": {**noted, "entries": entries}}


def _read(path: Path) -> Event:
    trace: Event = json.loads(gzip.decompress(path.read_bytes()))
    return trace


def _steps(trace: Event) -> dict[int, Event]:
    return {
        int(event["name"].removeprefix(_STEP)): event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and event["name"].startswith(_STEP)
    }
