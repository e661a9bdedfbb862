"""Ranks that were recorded at different times are compared where all were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace import load, reader
from commtrace.arrays import NULL
from commtrace.reports.content import headline
from commtrace.run import Run
from commtrace.trace_tables import WAITED

STEP_US = 1000
FIRST = 5  # the learner's first step, behind as many rounds as that


def event(name: str, at_us: float, us: float, category: str = "cpu_op") -> dict[str, Any]:
    where = {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": us, **where, "args": {}}


def write(folder: Path, rank: int, rounds: range, *, steps: bool = False, host: str = "vm") -> None:
    """An operator in each round; steps, if any, are one round each."""
    events = [event("aten::mm", STEP_US * number + 100, 800) for number in rounds]
    if steps:
        events += [
            event(f"ProfilerStep#{number}", STEP_US * number, 999, "user_annotation")
            for number in rounds
        ]
    content = {
        "distributedInfo": {"rank": rank, "world_size": 2},
        "host_name": host,
        "traceEvents": events,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    (folder / f"rank{rank}.json").write_text(json.dumps(content))


def operators(folder: Path) -> dict[int, list[tuple[float, int]]]:
    """Of each rank the rounds in which its operators begin, and how many us they last."""
    ops = reader.read([folder]).rows("ops")
    found: dict[int, list[tuple[float, int]]] = {0: [], 1: []}
    for rank, start, lasts in zip(
        *(ops.ints(name).tolist() for name in ("rank", "start_ns", "duration_ns")), strict=True
    ):
        us = (start - 1_700_000_000_000_000_000) / 1000
        found[rank].append((us / STEP_US, lasts // 1000))
    return found


def test_who_is_recorded_whole_is_cut_to_the_others_steps(tmp_path: Path) -> None:
    write(tmp_path, 0, range(FIRST, FIRST + 3), steps=True)
    write(tmp_path, 1, range(20))
    its = [(number + 0.1, 800) for number in range(FIRST, FIRST + 3)]
    assert operators(tmp_path) == {0: its, 1: its}
    run = reader.read([tmp_path])
    assert "Only the 3.00 ms in which all ranks were recorded are analysed" in " ".join(
        headline(Run(run, "apart").analysis())
    )
    assert run.rows("ranks").ints("end_ns").tolist() == 2 * [1_700_000_000_007_999_000]
    assert run.rows("ops").ints("step").tolist() == [5, 6, 7, NULL, NULL, NULL]
    (note,) = [note for note in run.notes if note.code == "recorded-apart"]
    assert "rank 1 for 19.8 ms, rank 0 for 3 ms: what is analysed are the 3 ms" in note.message
    assert "unfit-trace" not in {one.rule for one in load(tmp_path).diagnose().findings}


def test_what_the_common_time_cuts_begins_with_it_and_such_a_step_is_none(tmp_path: Path) -> None:
    """Rank 1's recording ends within rank 0's step 8; an operator of round 4 lasts until 5.2."""
    write(tmp_path, 0, range(FIRST, FIRST + 5), steps=True)
    write(tmp_path, 1, range(FIRST + 4))
    file = tmp_path / "rank1.json"
    file.write_text(file.read_text().replace('"ts": 4100, "dur": 800', '"ts": 4100, "dur": 1100'))
    assert operators(tmp_path)[1][0] == (5.0, 200)
    assert reader.read([tmp_path]).rows("steps").ints("step").tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("rounds", "steps", "host"),
    [
        (range(20), True, "other"),  # whose clocks may differ
        (range(20), False, "vm"),  # without steps
        (range(FIRST + 5), True, "vm"),  # most of it is common: FIRST + 5 rounds of ten
    ],
)
def test_otherwise_they_stay_as_they_are(
    tmp_path: Path, rounds: range, steps: bool, host: str
) -> None:
    write(tmp_path, 0, range(FIRST, FIRST + 5), steps=steps)
    write(tmp_path, 1, rounds, host=host)
    assert len(operators(tmp_path)[1]) == len(rounds)


def test_that_the_recorder_held_a_rank_up_is_said(tmp_path: Path) -> None:
    write(tmp_path, 0, range(3))
    file = tmp_path / "rank0.json"
    said = f"{WAITED} for 10.0 s, to compare its clock"
    ours = {"notes": [said, "recorded whole"]}
    file.write_text(json.dumps({**json.loads(file.read_text()), "commtrace": ours}))
    notes = reader.read([tmp_path]).notes
    assert [note.message for note in notes if note.code == "recorder-waited"] == [said]
