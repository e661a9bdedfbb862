"""A file that holds a sample of its run's events says so, and nothing is concluded from gaps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.reports import content
from commtrace.reports.web.step_time import step_time
from commtrace.reports.web.what_ran import what_ran

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def _load(file: Path, events: Any, *, apart: int) -> commtrace.Run:
    """A run of 240 kernels a millisecond apart, each of 100 us and every tenth communicating."""
    work = [events.note("ProfilerStep#1", 0, 240_000)]
    for i in range(1, 240):
        name = "gemm" if i % 10 else NCCL
        work += [
            events.launch(i * 1000, i * apart),
            events.kernel(name, i * 1000 + 20, 100, i * apart),
        ]
    file.write_text(json.dumps({"traceEvents": work}))
    return commtrace.load(file, workers=1)


def test_a_sample_is_told_first_and_no_share_is(tmp_path: Path, events: Any) -> None:
    run = _load(tmp_path / "rank0.json", events, apart=97)
    (note,) = (note for note in run.notes if note.code == "sampled-events")
    assert "and 239 of 23,087 are in the file" in note.message
    diagnosis = run.diagnose()
    assert diagnosis.findings[0].rule == "unfit-trace"
    assert diagnosis.findings[0].confidence == "high"
    assert {finding.rule for finding in diagnosis.findings} == {"unfit-trace"}
    assert "only a sample" in diagnosis.skipped["launch-gap"]
    assert "unknown: most events are missing" in content.headline(run.analysis())[2]
    assert "mean of all ranks" not in str(what_ran(run.analysis()))


@pytest.mark.parametrize("apart", [1, 5])
def test_calls_that_kineto_leaves_out_make_no_sample(
    tmp_path: Path, events: Any, apart: int
) -> None:
    run = _load(tmp_path / "rank0.json", events, apart=apart)
    assert "sampled-events" not in {note.code for note in run.notes}
    assert "launch-gap" in {finding.rule for finding in run.diagnose().findings}
    assert "mean of all ranks" in str(what_ran(run.analysis()))


def test_a_sample_lacks_launches_as_it_lacks_all_else(tmp_path: Path, events: Any) -> None:
    """Kernels and launches are left out one by one: that says nothing of the host."""
    work = [events.note("ProfilerStep#1", 0, 8_000_000)]
    for i in range(1, 8000):
        if i % 61 == 0:
            work.append(events.launch(i * 1000, i))
        if i % 53 == 0:
            work.append(events.kernel("gemm", i * 1000 + 20, 100, i))
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": work}))
    run = commtrace.load(tmp_path / "rank0.json", workers=1)
    (finding,) = run.diagnose().findings
    assert "are missing" in finding.summary


@pytest.mark.parametrize(("last", "told"), [(7478, True), (14, False), (None, False)])
def test_a_hosts_events_are_counted_by_their_index(
    tmp_path: Path, events: Any, last: int | None, told: bool
) -> None:
    """Ten all_reduces of gloo, the last of so many events."""
    work = [events.note(f"ProfilerStep#{i}", i * 1000, 1000) for i in range(5)]
    for i in range(10):
        index = {} if last is None else {"Ev Idx": i if i < 9 else last}
        work.append(events.note("gloo:all_reduce", i * 400, 300, **index))
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": work}))
    run = commtrace.load(tmp_path, workers=1)
    assert ("sampled-events" in {note.code for note in run.notes}) is told
    table = str([section.footer for section in content.sections(run.analysis(), 0)])
    assert ("Most events are missing" in table) is told
    assert ("Most events are missing" in str(step_time(run.analysis()))) is told
