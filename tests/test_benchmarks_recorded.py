"""The cases of ``python -m benchmarks.recorded`` can be recorded, and are judged by real rules."""

from __future__ import annotations

import pytest

from benchmarks.recorded.cases import CASES, Case
from benchmarks.recorded.measure import WORKLOADS
from commtrace.record import workloads
from commtrace.rules import RULES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_a_case_sets_what_its_workload_has_and_names_a_rule(case: Case) -> None:
    plan = workloads.parse(WORKLOADS / f"{case.workload}.py")
    fault, without = (plan.values(case.settings(fault=fault)) for fault in (True, False))
    assert fault != without
    assert case.rule in RULES
    assert set(case.ranks or ()) <= set(range(case.world_size))
