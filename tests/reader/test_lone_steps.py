"""A learner's own steps, of which many follow one exchange, are none of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace import load
from commtrace.arrays import NULL
from commtrace.run import Run

ROUND_US = 10_000
ROUNDS = 12


def event(name: str, at_us: float, us: float, category: str = "user_annotation") -> dict[str, Any]:
    where = {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": us, **where, "args": {}}


def write(folder: Path, rank: int, us: int, rounds: int, steps: int = 0) -> None:
    """Each round the rank works so long, if it has steps in so many of these; then all reduce."""
    events = []
    for begin in range(0, rounds * ROUND_US, ROUND_US):
        events.append(event("aten::mm", begin, us, "cpu_op"))
        lasts = ROUND_US - us - 100
        events.append(event("c10d::allreduce_", begin + us, lasts, "cpu_op"))
        events.append(event("gloo:all_reduce", begin + us + 10, lasts - 10) | {"tid": 2})
        for number in range(steps):
            name = f"ProfilerStep#{begin * steps // ROUND_US + number + 1}"
            events.append(event(name, begin + number * ROUND_US // steps, ROUND_US // steps - 1))
    content = {
        "distributedInfo": {"rank": rank, "world_size": 2, "backend": "gloo"},
        "host_name": "vm",
        "traceEvents": events,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(content))


def steps(run: Run) -> set[int]:
    return set(run.measures.rows("steps").ints("step").tolist()) - {NULL}


def test_who_learns_in_many_steps_of_its_own_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, 9000, ROUNDS, steps=6)
    write(tmp_path, 1, 1000, ROUNDS + 3)
    run = load(tmp_path, cache=False)
    (note,) = [note for note in run.notes if note.code == "lone-steps"]
    assert note.message.startswith("only rank 0 of 2 marked steps, most of which communicate noth")
    assert not steps(run)
    assert set(run.measures.rows("ops").ints("step").tolist()) == {NULL}
    ended = run.measures.rows("ranks").ints("end_ns")
    assert ended[0] == ended[1], "what rank 1 did while rank 0 was not recorded does not count"
    first = run.diagnose().findings[0]
    assert (first.rule, first.ranks) == ("straggler", (0,))
    assert first.cost_ns == pytest.approx((ROUNDS - 1) * 8e6, rel=0.02)


@pytest.mark.parametrize(("of_0", "of_1"), [(1, 0), (6, 6), (0, 0)])
def test_steps_of_the_run_stay(tmp_path: Path, of_0: int, of_1: int) -> None:
    """One rank marks the rounds, or all mark as many steps; or nobody marks any."""
    write(tmp_path, 0, 9000, ROUNDS, steps=of_0)
    write(tmp_path, 1, 1200, ROUNDS, steps=of_1)
    run = load(tmp_path, cache=False)
    assert steps(run) == set(range(1, ROUNDS * of_0 + 1))
    assert "lone-steps" not in {note.code for note in run.notes}


def test_of_ranks_that_step_unequally_often_who_has_more_to_do_is_named(tmp_path: Path) -> None:
    """Between two averages, as on shards of unlike lengths."""
    write(tmp_path, 0, 9000, ROUNDS, steps=20)
    write(tmp_path, 1, 3000, ROUNDS, steps=8)
    run = load(tmp_path, cache=False)
    (note,) = run.notes
    assert note.message.startswith("the ranks marked 96 to 240 steps, most of which communicate n")
    assert not steps(run)
    first = run.diagnose().findings[0]
    assert (first.rule, first.ranks) == ("straggler", (0,))
