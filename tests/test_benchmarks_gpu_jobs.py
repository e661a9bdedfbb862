"""Jobs of ``python -m benchmarks.gpu_jobs``: their traces are read whole, and judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu_jobs import __main__ as command
from benchmarks.gpu_jobs.__main__ import JOBS, judge
from benchmarks.gpu_jobs.report import totals
from commtrace.rules import RULES
from commtrace.run import load

BY_NAME = {job.name: job for job in JOBS}


def test_the_truth_is_possible() -> None:
    assert len(BY_NAME) == len(JOBS)
    for job in JOBS:
        assert set(job.rules) <= set(RULES)
        assert bool(job.wrong) <= bool(job.rules)
        assert job.ranks == tuple(sorted(job.ranks))


@pytest.mark.parametrize("name", ["ddp-slow-gpu", "ddp-pageable-on-all", "pp-heavy-stage"])
def test_a_fault_is_found_first_with_what_it_costs(name: str, tmp_path: Path) -> None:
    judged = judge(BY_NAME[name], tmp_path)
    assert load(tmp_path, workers=1, cache=False).notes == ()
    assert judged.right
    assert judged.error == pytest.approx(0, abs=0.1)


def test_a_healthy_job_has_no_finding(tmp_path: Path) -> None:
    judged = judge(BY_NAME["ddp-healthy"], tmp_path)
    assert judged.first is None
    assert "first finding not true: 0 of 1 healthy jobs" in totals([judged])


def test_the_command_prints_a_table_and_keeps_the_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["gpu_jobs", "--only", "ddp-float32", "--keep", str(tmp_path)]
    monkeypatch.setattr("sys.argv", asked)
    command.main()
    printed = capsys.readouterr().out
    assert "| ddp-float32 | 4 | gradients in float32 |" in printed
    assert "first finding right: 1 of 1 jobs with a fault" in printed
    assert len([*(tmp_path / "ddp-float32").iterdir()]) == 4
