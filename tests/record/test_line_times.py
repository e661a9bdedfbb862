"""Where a thread is: looked at by another one, every 10 ms."""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.record.line_times import LineTimes


def loops(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def sleeps(seconds: float) -> None:
    time.sleep(seconds)


def _machine(folder: Path) -> dict[str, Any]:
    content = json.loads(gzip.decompress((folder / "rank0.json.gz").read_bytes()))
    machine: dict[str, Any] = content["commtrace"]["machine"]
    return machine


def _by_function(its: LineTimes) -> dict[str, tuple[float, float]]:
    """What passed and ran in each function, in s."""
    said = its.stop()
    assert said is not None
    found: dict[str, tuple[float, float]] = {}
    for _, code, passed, ran in said["looks"]:
        name = said["names"][code].rpartition(" in ")[2]
        before = found.get(name, (0.0, 0.0))
        found[name] = before[0] + passed / 1e6, before[1] + ran / 1e6
    return found


def test_what_a_thread_runs_and_where_it_sleeps() -> None:
    its = LineTimes()
    its.start()
    loops(0.2)
    sleeps(0.2)
    found = _by_function(its)
    assert found["loops"][0] >= 0.15
    assert found["loops"][1] >= 0.15
    assert 0.15 <= found["sleeps"][0] <= 0.4
    assert found["sleeps"][1] < 0.05


def test_python_goes_on_as_before() -> None:
    usual, threads = sys.getswitchinterval(), threading.active_count()
    its = LineTimes()
    its.start()
    another = LineTimes()
    another.start()
    its.stop()
    another.stop()
    assert sys.getswitchinterval() == usual
    assert its.stop() is None
    time.sleep(0.05)
    assert threading.active_count() == threads


def test_a_thread_that_ends_is_looked_at_no_more() -> None:
    its = LineTimes()
    thread = threading.Thread(target=its.start)
    thread.start()
    thread.join()
    time.sleep(0.03)
    assert its.stop() is not None


def test_they_are_in_the_trace_unless_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commtrace.recording(tmp_path / "with"):
        loops(0.1)
    machine = _machine(tmp_path / "with")
    assert any("in loops" in name for name in machine["lines"]["names"])
    monkeypatch.setenv("COMMTRACE_WITHOUT", "lines")
    with commtrace.recording(tmp_path / "without"):
        loops(0.1)
    machine = _machine(tmp_path / "without")
    assert machine["lines"] is None
