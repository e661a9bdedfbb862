"""Programs for real GPUs: what is said of them is of what is there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.on_gpu.__main__ import SCRIPTS, Case, cases, row, step_ms
from commtrace.rules import RULES, diagnose

NAMES = sorted(path.name for path in SCRIPTS.glob("*.py"))


def test_each_program_is_there_clean_and_with_each_of_its_faults() -> None:
    assert sorted({case.program for case in cases()}) == NAMES
    clean = [case.program for case in cases() if case.fault is None]
    assert sorted(clean) == NAMES
    assert len({case.name for case in cases()}) == len(cases())
    order = [case.name for case in cases()]
    for case in cases():
        assert order.index(f"{Path(case.program).stem}.clean") <= order.index(case.name)
        assert set(case.ranks) < set(range(case.world))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_knows_the_faults_that_are_told_of_it(name: str) -> None:
    source = (SCRIPTS / name).read_text("utf-8")
    ast.parse(source)
    for case in cases():
        if case.program == name and case.fault:
            assert f'"{case.fault}"' in source or f"'{case.fault}'" in source


def test_a_row_holds_what_was_said_beside_what_was_found() -> None:
    case = Case("a.py", 2, "slow", (1,), "slow | late", "line 3", "be quick")
    first = diagnose(RULES["straggler"].bad()).findings[0]
    found = row(case, {"a.clean": 10.0, "a.slow": 12.5}, first)
    assert found.startswith("| a | slow | 1 | 2.5 | slow / late | straggler: ")
    assert row(case, {}, None) == "| a | slow | 1 | – | slow / late | none |"


def test_the_last_time_that_a_program_says_counts() -> None:
    assert step_ms('{"step_ms": 1.5}\nsaved\n{"step_ms": 2.25}\n') == 2.25
    assert step_ms("step 3") is None
