"""A report on many ranks is as long as one on a few; JSON stays complete."""

from __future__ import annotations

import json

from commtrace.diagnosis import Note
from commtrace.reports.content import alike, notes
from commtrace.reports.formats import html, markdown, text
from commtrace.reports.formats import json as json_report
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
        assert "Ranks that behave alike" in written
        assert "40 % more compute" in " ".join(written.split())
    page = html.render(analysis)
    assert "ranks that behave alike" in page
    assert "1 rank: 40 % more compute" in page
    answer = json.loads(json_report.render(analysis))
    assert len(answer["devices"]) == RANKS
    most, odd = answer["alike_ranks"]
    assert (most["count"], odd["ranks"], odd["differs_in"]) == (RANKS - 1, "7", "compute")


def test_few_ranks_are_in_no_groups() -> None:
    tiny = Tiny(ranks=16)
    for rank in range(16):
        tiny.kernel(rank, 0, 400 if rank == 7 else 100)
        tiny.collective(rank, "all_reduce", 400, 100, size=1 << 20)
    analysis = Run(tiny.trace(), "few").analysis(select=["straggler"])
    assert len(json.loads(json_report.render(analysis))["alike_ranks"]) == 2
    for written in (text.render(analysis), markdown.render(analysis), html.render(analysis)):
        assert "behave alike" not in written


def test_of_many_groups_those_that_differ_most_are_shown() -> None:
    tiny = Tiny(ranks=60)
    for rank in range(60):
        tiny.kernel(rank, 0, 100 + 60 * rank if rank < 20 else 50)
        tiny.collective(rank, "all_reduce", 1_300, 100, size=1 << 20)
    section = alike.section(tiny.trace())
    assert section is not None
    assert [row[0] for row in section.cells] == ["20–59", *map(str, range(19, 8, -1))]
    assert "9 more are not shown." in section.footer


def test_notes_of_a_kind_are_one_line() -> None:
    lines = notes(run().notes)
    assert lines == [
        "rank-from-filename (300 notes, ranks 0–299): the trace has no rank: 0",
        "truncated (rank 9): the JSON breaks off",
    ]
    few = notes(run().notes[:2])
    assert few[1] == "rank-from-filename (rank 1): the trace has no rank: 1"
