"""What the reports say of ranks that wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any

import pytest

from commtrace.analysis import Analysis
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.metrics.run.collectives import COLLECTIVES_BY_DIMENSION
from commtrace.reports import Look, notebook
from commtrace.reports.content.tables import collectives
from commtrace.reports.content.waiting import straggler
from commtrace.reports.formats import html, markdown
from commtrace.reports.formats import text as terminal
from commtrace.run import Run
from commtrace.synthetic import Tiny
from commtrace.table import Rows

Make = Callable[..., Measures]

MS = 1_000_000
LATE = 2


def run_of(
    make_trace: Make,
    late_ms: list[list[float]],
    *,
    group: str = "0",
    hosts: tuple[str, ...] = ("a", "a", "a", "a"),
    world_size: int = 4,
) -> Analysis:
    """All reduces, 100 ms apart, each rank so late; 1 ms after the last all are done."""
    called = [
        {"op": "all_reduce", "group": group, "group_size": len(late), "seq": seq, "rank": rank}
        | {"size_bytes": 4_000, "dtype": "float32", "start_ns": round((100 * seq + ms) * MS)}
        | {"duration_ns": round((max(late) + 1 - ms) * MS)}
        for seq, late in enumerate(late_ms)
        for rank, ms in enumerate(late)
    ]
    ranks = range(len(late_ms[0]))
    trace = make_trace(
        collectives=called,
        groups=[{"rank": r, "group": group, "ranks": ",".join(map(str, ranks))} for r in ranks],
        ranks=[
            {"rank": r, "file": f"{r}.json", "host": hosts[r], "world_size": world_size}
            | {"start_ns": 0, "end_ns": 100 * len(late_ms) * MS}
            for r in ranks
        ],
    )
    return Run(trace, "run").analysis(select=["unfit-trace"])


def always_late(rank: int, times: int = 10) -> list[list[float]]:
    return [[10.0 if r == rank else 0.0 for r in range(4)] for _ in range(times)]


def test_a_straggler_is_named_with_what_it_costs(make_trace: Make) -> None:
    analysis = run_of(make_trace, always_late(LATE))
    said = "Rank 2 arrived last in 10 of 10 operations; the others waited 300 ms for it."
    assert straggler(analysis) == said
    lines = terminal.render(analysis, Look(width=100)).splitlines()
    assert lines[4] == said
    start = lines.index("Who waits for whom")
    assert lines[start + 2 : start + 8] == [
        "rank  arrived last  waited  caused",
        "   0       0 of 10  100 ms       0",
        "   1       0 of 10  100 ms       0",
        "   2      10 of 10       0  300 ms",
        "   3       0 of 10  100 ms       0",
        (
            "Sums over operations, several at once included; "
            "the wait caused is over all ranks that waited."
        ),
    ]
    assert said in markdown.render(analysis)
    assert said in notebook.render(analysis)


@pytest.mark.parametrize("rule", ["straggler", "jitter", "late-sender"])
def test_what_a_finding_explains_is_not_explained_twice(make_trace: Make, rule: str) -> None:
    analysis = run_of(make_trace, always_late(LATE))
    found = Finding(rule, "who waits", (), (), 0, 1, 1, (), (), "mend it", "high")
    diagnosis = replace(analysis.verdict.diagnosis, findings=(found,))
    judged = replace(analysis.verdict, diagnosis=diagnosis)
    assert straggler(replace(analysis, verdict=judged)) is None


@pytest.mark.parametrize(
    "late_ms",
    [
        [*always_late(0), *always_late(1), *always_late(2), *always_late(3)],  # taking turns
        always_late(LATE, times=2),  # twice is no habit
        [[0.0, 0.0, 0.01, 0.0]] * 10,  # always, but by nothing that counts
    ],
)
def test_who_does_not_stand_out_is_not_blamed(make_trace: Make, late_ms: Any) -> None:
    assert straggler(run_of(make_trace, late_ms)) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [("0", "ranks 0–1"), ("tp:0", "tp (ranks 0–1)"), ("mesh_<b>", "<b> (ranks 0–1)")],
)
def test_the_straggler_of_one_group(make_trace: Make, name: str, said: str) -> None:
    """Each group has its own, so that nobody causes most of the waiting; a name is no markup."""
    called, groups = [], []
    for members, group in (((0, 1), name), ((2, 3), "1"), ((4, 5), "2")):
        for rank in members:
            told = ",".join(map(str, members))
            groups.append({"rank": rank, "group": group, "ranks": told})
            late = 10 + (rank == 1) if rank % 2 else 0
            called += [
                {"op": "all_reduce", "group": group, "group_size": 2, "seq": seq, "rank": rank}
                | {"start_ns": (100 * seq + late) * MS, "duration_ns": (20 - late) * MS}
                for seq in range(12)
            ]
    ranks = [{"rank": r, "file": f"{r}.json", "host": "a", "end_ns": 1_200 * MS} for r in range(6)]
    trace = make_trace(
        collectives=called, groups=groups, ranks=[{**row, "start_ns": 0} for row in ranks]
    )
    analysis = Run(trace, "run").analysis(select=["unfit-trace"])
    found = straggler(analysis)
    assert found is not None
    assert found.startswith(f"Among {said}, rank 1 arrived last in 12 of 12 operations")
    assert f"Among {escape(said)}, rank 1" in notebook.render(analysis)
    assert f"Among {escape(said)}, rank 1" in markdown.render(analysis)


def test_missing_ranks_make_waits_a_bound(make_trace: Make) -> None:
    shown = terminal.render(run_of(make_trace, always_late(LATE), world_size=8), Look(width=100))
    assert "for it. Only 4 of 8 ranks were compared." in " ".join(shown.split())
    assert "Ranks are missing: some may have been later, and the waits longer." in shown


def test_clocks_are_mentioned_where_hosts_differ(make_trace: Make) -> None:
    alone = terminal.render(run_of(make_trace, always_late(LATE)), Look(width=100))
    assert "Clocks" not in alone
    two_hosts = run_of(make_trace, always_late(LATE), hosts=("a", "a", "b", "b"))
    assert "Clocks are known to within" in terminal.render(two_hosts, Look(width=100))


def test_clocks_that_nothing_ties_are_not_said_to_be_known() -> None:
    """As of a pipeline's hosts, between which there are only sends and recvs, and few of these."""
    tiny = Tiny(ranks=3, hosts=("a", "a", "b"))
    for at in range(0, 10_000, 1_000):
        tiny.collective(0, "all_reduce", at, 50, size=4_000)
        for rank, op, peer in ((1, "send", 2), (2, "recv", 1)) if at < 3_000 else ():
            tiny.collective(rank, op, at + 100, 50, size=4_000, peer=peer)
    analysis = Run(tiny.trace(), "run").analysis(select=["straggler"])
    shown = " ".join(terminal.render(analysis, Look(width=100)).split())
    untied = "nothing ties rank 2 to the others'"
    assert f"No critical path: it needs one clock for all ranks: {untied}." in shown
    assert f"straggler: needs one clock for all ranks: {untied}" in shown
    assert "Nothing ties rank 2 to the others' clock: waits across clocks are unknown." in shown
    assert "Clocks are known" not in shown
    page = html.render(analysis)
    assert "waits across clocks are unknown" in page
    assert "Clocks are known" not in page


def test_one_rank_waits_for_nobody(make_trace: Make) -> None:
    analysis = run_of(make_trace, [[0.0]] * 10, world_size=1)
    assert straggler(analysis) is None
    assert "Who waits" not in terminal.render(analysis)


def kind(**more: Any) -> Rows:
    row: dict[str, Any] = {column.name: None for column in COLLECTIVES_BY_DIMENSION.columns}
    row |= {"op": "all_reduce", "count": 1, "duration_ns_total": 100, "duration_ns_p50": 100}
    row |= {"wait_ns_total": 0, "groups": 1, "sizes": 1}
    return COLLECTIVES_BY_DIMENSION.of_dicts([{**row, **more}])


def test_a_wait_that_clocks_would_hide_is_not_said_to_be_none() -> None:
    title = [name for name, _ in collectives(kind(), 100, 0, []).columns]
    wait = title.index("wait")
    assert collectives(kind(), 100, 0, []).cells[0][wait] == "0 %"
    assert collectives(kind(), 100, 0, ["no wait below"]).cells[0][wait] == "–"


def test_exposed_time_of_what_runs_at_once_adds_up_to_more() -> None:
    both = COLLECTIVES_BY_DIMENSION.rows(
        kind(exposed_ns=84).columns, kind(op="broadcast", exposed_ns=83).columns
    )
    assert "what runs at once counts for each" in " ".join(collectives(both, 200, 90, []).footer)
    assert not collectives(both, 200, 170, []).footer
