"""The benchmark of comparisons knows what is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compare import __main__ as command
from benchmarks.compare import generated
from benchmarks.compare.pairs import Kept, Truth, compared
from benchmarks.compare.programs import Judged, faults
from benchmarks.programs.truth import PROGRAMS


@pytest.fixture(scope="module")
def pair() -> tuple[Kept, Kept, Truth]:
    base, _ = generated._run(0, 0.02, "a", None)
    after, truth = generated._run(0, 0.02, "b", generated._straggler)
    return base, after, truth


def test_a_generated_straggler_is_found_and_its_cost_held(pair: tuple[Kept, Kept, Truth]) -> None:
    base, after, truth = pair
    answer = compared([base], [after])
    assert answer.names(truth)
    assert not answer.names(Truth(ranks=(0,)))
    assert answer.misleads(Truth(op="all_gather"))
    assert answer.same_operations
    assert answer.low_pct > command.GATE
    assert compared([base], [base]).step.change == 0


def test_a_program_s_rounds_are_judged(pair: tuple[Kept, Kept, Truth], tmp_path: Path) -> None:
    base, after, _ = pair
    program = next(its for its in PROGRAMS if its.name == "ddp_static_graph")
    names = (("none", base), ("sleeping-rank", after))
    its = {tmp_path / f"{program.name}-{fault}-1": kept for fault, kept in names}
    (judged,) = faults([program], its, tmp_path, 1)
    assert judged.truth.step_ns == 35e6
    assert judged.answer.misleads(judged.truth), "it is rank 1, not 0"
    text = command.with_change([judged])
    assert "0 of 1 (0 %) found on the right operation or rank" in text
    assert "wrong: ddp_static_graph-sleeping-rank-1" in text
    clean = Judged("a → b", Truth(step_ns=0.0), compared([base], [after]))
    assert "1 fail a gate of 3 %" in command.without_change([clean])
