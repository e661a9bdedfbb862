"""The programs of ``python -m benchmarks.programs`` start, and their truth is declared."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs.report import row, totals
from benchmarks.programs.trial import Trial, tried
from benchmarks.programs.truth import PROGRAMS, SCRIPTS, Fault, Program
from benchmarks.programs.verdict import Judged, false_alarms
from commtrace.rules import RULES

FAULT = Fault("slow", ("straggler",), (1,), "all_reduce", 10.0)
PROGRAM = Program("ddp_mlp", (FAULT,))


def finding(rule: str, *ranks: int, **more: Any) -> dict[str, Any]:
    usual = {"confidence": "high", "cost_ns": 36_000_000, "explained_by": None}
    return {"rule": rule, "ranks": list(ranks)} | usual | more


def test_every_script_has_its_truth() -> None:
    names = [program.name for program in PROGRAMS]
    assert names == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    assert len(names) >= 30


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_truth_is_possible(program: Program) -> None:
    assert program.faults
    for fault in program.faults:
        assert set(fault.rules) <= set(RULES)
        assert set(fault.ranks) < set(range(program.world_size))
    assert set(program.always) <= set(RULES)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_what_is_declared_and_knows_nothing_of_recorders(program: Program) -> None:
    text = program.path.read_text("utf-8")
    strings = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert {"none", *(fault.name for fault in program.faults)} <= strings
    assert "commtrace" not in text


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_says_which_faults_it_has(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [program.path.name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(program.path), run_name="__main__")
    assert ended.value.code == 0
    offered = re.search(r"--fault \{([^}]*)\}", capsys.readouterr().out)
    assert offered is not None
    assert offered[1].split(",") == ["none", *(fault.name for fault in program.faults)]


def test_a_finding_is_right_by_its_rule_and_its_ranks() -> None:
    judged = Judged(PROGRAM, FAULT, [])
    right = Trial(3, 50.0, (finding("straggler", 1),))
    assert judged.right(right)
    assert not judged.right(Trial(3, 50.0, (finding("straggler", 0),)))
    assert not judged.right(Trial(3, 50.0, (finding("jitter", 1), finding("straggler", 1))))
    assert not judged.right(Trial(3, 50.0))
    symptom = finding("exposed-communication", 0, 1, explained_by="straggler")
    assert judged.right(Trial(3, 50.0, (symptom, *right.findings)))


def test_where_nobody_is_to_blame_it_is_right_to_blame_nobody() -> None:
    judged = Judged(PROGRAM, Fault("slow for all", ()), [])
    assert judged.right(Trial(3, 50.0))
    assert judged.right(Trial(3, 50.0, (finding("exposed-communication", 0, 1),)))
    assert not judged.right(Trial(3, 50.0, (finding("straggler", 1),)))


def test_a_saving_is_held_to_the_injected_and_to_the_measured_delay() -> None:
    right = (finding("straggler", 1),)
    judged = Judged(PROGRAM, FAULT, [Trial(3, 40.0)], [Trial(3, 55.0, right)])
    assert judged.predicted_ms == 12.0
    assert judged.error(FAULT.delay_ms) == pytest.approx(0.2)
    assert judged.error(judged.gained_ms) == pytest.approx(-0.2)


def test_a_sure_culprit_of_a_clean_recording_is_a_false_alarm() -> None:
    unsure = finding("straggler", 1, confidence="low")
    everybody = finding("exposed-communication", 0, 1)
    alarm = finding("straggler", 1)
    assert list(false_alarms(Trial(3, 40.0, (unsure, everybody, alarm)), PROGRAM)) == [alarm]


def test_a_place_counts_where_the_finding_names_it() -> None:
    judged = Judged(PROGRAM, FAULT, [])
    named = finding("straggler", 1, summary="rank 1 is late to all_reduce")
    assert judged.place(Trial(3, 50.0, (named,)))
    assert judged.place(Trial(3, 50.0, (finding("straggler", 1, place="broadcast"),))) is False
    assert judged.place(Trial(3, 50.0)) is None


def test_a_failed_recording_is_reported() -> None:
    works, fails = Trial(3, 40.0), Trial(failed="more than 180 s")
    for clean, faulty in ((works, fails), (fails, works)):
        judged = Judged(PROGRAM, FAULT, [clean], [faulty])
        assert "failed: more than 180 s" in row(judged)
        assert "failed recordings: 1 ddp_mlp: more than 180 s" in totals("all", [judged])


@pytest.mark.slow
def test_a_program_is_recorded_and_judged(tmp_path: Path) -> None:
    program = next(each for each in PROGRAMS if each.name == "ddp_mlp")
    trial = tried(program, "sleeping-rank", tmp_path / "recording", timeout_s=120)
    assert not trial.failed
    assert 3 <= trial.steps <= 8
    assert trial.step_ms > 25
    assert not tried(program, "none", tmp_path / "none" / "such", timeout_s=0.01).steps
