"""A report on many ranks is as long as one on a few; JSON stays complete."""

from __future__ import annotations

import json

from commtrace.diagnosis import Note
from commtrace.reports.content import notes
from commtrace.reports.formats import json as json_report
from commtrace.reports.formats import markdown, text
from commtrace.run import Run
from commtrace.synthetic import Tiny

RANKS = 300


def run() -> Run:
    tiny = Tiny(ranks=RANKS)
    for rank in range(RANKS):
        late = 40 if rank == 7 else 0
        for step in range(3):
            tiny.kernel(rank, 1000 * step, 100 + late)
            tiny.collective(rank, "all_reduce", 1000 * step + 100 + late, 300 - late, size=1 << 20)
        tiny.notes.append(Note("rank-from-filename", f"the trace has no rank: {rank}", rank))
    tiny.notes.append(Note("truncated", "the JSON breaks off", 9, "rank9.json"))
    return Run(tiny.trace(), "many")


def test_people_are_told_the_extremes_and_what_is_typical() -> None:
    analysis = run().analysis(select=["straggler"])
    for written in (text.render(analysis), markdown.render(analysis)):
        assert len(written.splitlines()) < 120
        assert "Typical of all 300 (medians)" in " ".join(written.split())
    assert len(json.loads(json_report.render(analysis))["devices"]) == RANKS


def test_notes_of_a_kind_are_one_line() -> None:
    lines = notes(run().notes)
    assert lines == [
        "rank-from-filename (300 notes, ranks 0–299): the trace has no rank: 0",
        "truncated (rank 9): the JSON breaks off",
    ]
    few = notes(run().notes[:2])
    assert few[1] == "rank-from-filename (rank 1): the trace has no rank: 1"
