"""The programs of ``python -m benchmarks.programs`` start, and their truth is declared."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.programs import __main__ as command
from benchmarks.programs.program import SCRIPTS, Fault, Program
from benchmarks.programs.recordings import is_complete, recorded
from benchmarks.programs.report import kinds, table, totals
from benchmarks.programs.trial import Trial, analysed, each, whole
from benchmarks.programs.truth import (
    EIGHTH,
    FIFTH,
    FIRST,
    FOURTH,
    HOSTS,
    PROGRAMS,
    SECOND,
    SEVENTH,
    SIXTH,
    THIRD,
)
from benchmarks.programs.verdict import Judged, false_alarms
from benchmarks.programs.windows import cut, windows
from commtrace.rules import RULES

FAULT = Fault("slow", ("straggler",), (1,), "all_reduce", ("loader",), 10.0)
STEPS = range(5, 8)
CAUSES = {"loader", "checkpoint", "garbage-collection", "compute", "copy", "host", None}
RECORDED = Path(__file__).parents[1] / "traces"
PROGRAM = Program("ddp_mlp", (FAULT,))


def finding(rule: str, *ranks: int, **more: Any) -> dict[str, Any]:
    usual = {"confidence": "high", "cost_ns": 36_000_000, "explained_by": None}
    return {"rule": rule, "ranks": list(ranks)} | usual | more


def test_every_script_has_its_truth() -> None:
    names = [program.name for program in PROGRAMS]
    assert sorted(names) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    assert len(names) >= 60


def test_the_programs_of_a_lot_go_by_name() -> None:
    for lot in (FIRST, SECOND, HOSTS, THIRD, FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH):
        names = [program.name for program in lot]
        assert names == sorted(names)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_truth_is_possible(program: Program) -> None:
    assert program.faults
    for fault in program.faults:
        assert set(fault.rules) <= set(RULES)
        assert set(fault.ranks) < set(range(program.world_size))
        assert set(fault.causes) <= CAUSES
        assert all(fault.happens(range(first, first + 8)) for first in range(5, 8))
    assert set(program.always) <= set(RULES)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_does_what_is_declared_and_knows_nothing_of_recorders(program: Program) -> None:
    text = program.path.read_text("utf-8")
    strings = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert program.hosts > 1 or {*program.runs} <= strings  # else the network has the fault
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
    if program.hosts > 1:
        return
    offered = re.search(r"--fault \{([^}]*)\}", capsys.readouterr().out)
    assert offered is not None
    assert offered[1].split(",") == [*program.runs]


def test_a_finding_is_right_by_its_rule_and_its_ranks() -> None:
    judged = Judged(PROGRAM, FAULT, [])
    right = Trial(STEPS, 50.0, (finding("straggler", 1),))
    assert judged.right(right)
    assert not judged.right(Trial(STEPS, 50.0, (finding("straggler", 0),)))
    assert not judged.right(Trial(STEPS, 50.0, (finding("jitter", 1), finding("straggler", 1))))
    assert not judged.right(Trial(STEPS, 50.0))
    symptom = finding("exposed-communication", 0, 1, explained_by="straggler")
    assert judged.right(Trial(STEPS, 50.0, (symptom, *right.findings)))


def test_where_nobody_is_to_blame_it_is_right_to_blame_nobody() -> None:
    judged = Judged(PROGRAM, Fault("slow for all", ()), [])
    assert judged.right(Trial(STEPS, 50.0))
    assert judged.right(Trial(STEPS, 50.0, (finding("exposed-communication", 0, 1),)))
    assert not judged.right(Trial(STEPS, 50.0, (finding("straggler", 1),)))


def test_a_saving_is_held_to_the_injected_and_to_the_measured_delay() -> None:
    right = (finding("straggler", 1),)
    judged = Judged(PROGRAM, FAULT, [Trial(STEPS, 40.0)], [Trial(STEPS, 55.0, right)])
    assert judged.predicted_ms == 12.0
    assert judged.error(judged.injected_ms) == pytest.approx(0.2)
    assert judged.error(judged.gained_ms) == pytest.approx(-0.2)


def test_a_sure_culprit_of_a_clean_recording_is_a_false_alarm() -> None:
    unsure = finding("straggler", 1, confidence="low")
    everybody = finding("exposed-communication", 0, 1)
    alarm = finding("straggler", 1)
    assert list(false_alarms(Trial(STEPS, 40.0, (unsure, everybody, alarm)), PROGRAM)) == [alarm]


def test_a_place_counts_where_the_finding_names_it() -> None:
    judged = Judged(PROGRAM, FAULT, [])
    named = finding("straggler", 1, summary="rank 1 is late to all_reduce")
    other = finding("straggler", 0, summary="rank 0 is late to all_reduce")
    assert judged.place(Trial(STEPS, 50.0, (named,)))
    assert judged.place(Trial(STEPS, 50.0, (other,))) is None
    assert judged.place(Trial(STEPS, 50.0, (finding("straggler", 1, place="broadcast"),))) is False
    assert judged.place(Trial(STEPS, 50.0)) is None


def test_a_failed_recording_is_reported() -> None:
    works, fails = Trial(STEPS, 40.0), Trial(failed="more than 180 s")
    for clean, faulty in ((works, fails), (fails, works)):
        judged = Judged(PROGRAM, FAULT, [clean], [faulty])
        assert "failed: more than 180 s" in table([judged])
        assert "failed: 1 ddp_mlp: more than 180 s" in totals("all", [judged])


def test_a_cause_counts_where_the_finding_is_right_and_can_name_one() -> None:
    judged = Judged(PROGRAM, FAULT, [])

    def cause(rank: int, **more: Any) -> bool | None:
        return judged.cause(Trial(STEPS, 50.0, (finding("straggler", rank, **more),)))

    assert [cause(1), cause(0, cause="loader")] == [None, None]
    assert cause(1, cause="loader")
    assert cause(1, cause="host") is False
    assert "| straggler, loader | 1 | 1/1 | 1/1 |" in kinds(
        [
            Judged(
                PROGRAM,
                FAULT,
                [Trial(STEPS, 40.0)],
                [Trial(STEPS, 50.0, (finding("straggler", 1, cause="loader"),))],
            )
        ]
    )


def test_a_sure_first_finding_of_the_wrong_ranks_misleads() -> None:
    judged = Judged(PROGRAM, FAULT, [])
    assert judged.misled(Trial(STEPS, 50.0, (finding("straggler", 0),)))
    assert not judged.misled(Trial(STEPS, 50.0, (finding("straggler", 1),)))
    assert not judged.misled(Trial(STEPS, 50.0, (finding("straggler", 0, confidence="low"),)))
    assert not judged.misled(Trial(STEPS, 50.0, (finding("exposed-communication", 0, 1),)))
    assert not judged.misled(Trial(STEPS, 50.0))


def test_a_fault_of_some_steps_counts_by_its_mean_over_those_recorded() -> None:
    fault = replace(FAULT, at=range(4, 15, 3))
    assert fault.mean_delay_ms(range(5, 13)) == 10.0 * 2 / 8
    assert fault.mean_delay_ms(range(4, 14)) == 10.0 * 4 / 10
    assert FAULT.mean_delay_ms(range(5, 13)) == 10.0
    assert replace(fault, delay_ms=None).mean_delay_ms(range(5, 13)) is None
    once = replace(FAULT, at=range(7, 8))
    within, outside = Trial(range(5, 8), 50.0), Trial(range(8, 11), 50.0)
    judged = Judged(PROGRAM, once, [], [within, outside])
    assert judged.done == [within]
    assert judged.injected_ms == pytest.approx(10 / 3)


def test_what_is_kept_is_not_recorded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, status in (("ddp_mlp-none-1", "complete"), ("ddp_mlp-slow-1", "failed")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(json.dumps({"status": status}))
    asked = []

    def fail(program: Program, fault: str, folder: Path, timeout_s: float) -> str:
        asked.append(folder.name)
        return "no room"

    monkeypatch.setattr(command, "recorded", fail)
    failed = command.record({PROGRAM: command.folders(PROGRAM, 2, tmp_path)}, 2, 180.0)
    assert asked == ["ddp_mlp-slow-1", "ddp_mlp-none-2", "ddp_mlp-slow-2"]
    assert {folder.name for folder in failed} == {*asked}


def test_a_program_of_several_hosts_is_skipped_where_there_can_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = replace(PROGRAM, hosts=2)
    its = command.folders(program, 1, tmp_path)
    monkeypatch.setattr(command, "lacking", lambda: "needs root")
    assert command.possible(PROGRAM, its)
    assert not command.possible(program, its)
    assert capsys.readouterr().err == "skipped ddp_mlp: needs root\n"
    for (folder,) in its.values():
        for host in ("a", "b"):
            assert not is_complete(program, folder)
            (folder / host).mkdir(parents=True)
            (folder / host / "manifest.json").write_text('{"status": "complete"}')
    assert command.possible(program, its)  # they are judged again
    monkeypatch.setattr(command, "lacking", str)
    assert command.possible(program, command.folders(program, 2, tmp_path))


def test_a_recording_that_cannot_be_analysed_ends_no_other(tmp_path: Path) -> None:
    ((_, (trial,)),) = each(whole, [tmp_path / "none"]).items()
    assert trial.failed.startswith("TraceError: ")


def test_a_window_holds_what_began_in_its_steps() -> None:
    def event(name: str, ts: float, ph: str = "X", **more: Any) -> dict[str, Any]:
        return {"ph": ph, "name": name, "ts": ts} | ({"dur": 8.0} if ph == "X" else {}) | more

    steps = [event(f"ProfilerStep#{step}", 10.0 * step) for step in range(5, 11)]
    arrows = [
        event("", 10.0 * step + time, ph, id=step)
        for step in range(5, 11)
        for ph, time in (("s", 5.0), ("f", 11.0))
    ]
    named = {"ph": "M", "name": "process_name"}
    work = [event(f"work {step}", 10.0 * step + 1) for step in range(5, 11)]
    entries = [{"time_created_ns": 1000 + 10_000 * step + 1000} for step in range(5, 11)]
    trace = {
        "baseTimeNanoseconds": 1000,
        "traceEvents": [named, *steps, *arrows, *work],
        "commtrace": {"steps": [5, 10], "rank": 0, "flight_recorder": {"entries": entries}},
    }
    part = cut(trace, 6, 8)
    names = [one["name"] for one in part["traceEvents"] if one["ph"] in "MX"]
    assert names == ["process_name", *(f"ProfilerStep#{n}" for n in (6, 7, 8))] + [
        f"work {n}" for n in (6, 7, 8)
    ]
    assert [one["id"] for one in part["traceEvents"] if one["ph"] in "sf"] == [6, 6, 7, 7]
    assert part["commtrace"] == {
        "steps": [6, 8],
        "rank": 0,
        "flight_recorder": {"entries": entries[1:4]},
    }
    assert trace["commtrace"]["steps"] == [5, 10]


def test_every_three_steps_of_a_recording_are_judged() -> None:
    recording = RECORDED / "barrier" / "gloo-4"
    whole_run = analysed(recording)
    parts = windows(recording)
    assert [part.steps for part in parts] == [
        range(first, first + 3) for first in whole_run.steps[:-2]
    ]
    assert not any(part.failed for part in parts)


@pytest.mark.slow
def test_a_program_is_recorded_and_judged(tmp_path: Path) -> None:
    program = next(each for each in PROGRAMS if each.name == "ddp_mlp")
    folder = tmp_path / "recording"
    assert not recorded(program, "sleeping-rank", folder, timeout_s=120)
    assert is_complete(program, folder)
    trial = analysed(folder)
    assert 3 <= len(trial.steps) <= 8
    assert trial.step_ms > 25
    assert recorded(program, "none", folder, timeout_s=0.01) == "more than 0 s"
    assert not is_complete(program, folder)
