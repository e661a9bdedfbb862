"""What Perfetto's own code reads from a timeline is what our tables hold, to the nanosecond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analysis import Analysis
from commtrace.arrays import NULL, rows_by
from commtrace.causal.critical_path import critical_pieces
from commtrace.causal.steps import path_of
from commtrace.measures import Measures
from commtrace.metrics.run.run_clock import clock_offsets
from commtrace.metrics.run.waits import matched
from commtrace.reports.content.open_command import numbered_findings
from commtrace.run import Run
from commtrace.synthetic import Tiny
from commtrace.units import clean
from commtrace.viewer.timeline import write_timeline

Query = Callable[..., list[list[tuple[Any, ...]]]]

PROBLEMS = "select name as n, value as v from stats where severity != 'info' and value > 0"
SLICES = """
select t.name as track, s.ts as ts, s.dur as dur, s.name as name, s.depth as depth
from slice s join track t on s.track_id = t.id
"""
ARROWS = """
select a.ts as since, b.ts as till, ta.name as tail, tb.name as head from flow
join slice a on slice_out = a.id join slice b on slice_in = b.id
join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id
"""
ARGUMENTS = """
select s.ts as ts, s.dur as dur, a.key as key, a.display_value as value
from slice s join track t on s.track_id = t.id join args a using (arg_set_id)
where s.depth = 0 and t.name glob 'rank *, *'
"""
COUNTERS = """
select t.name as track, c.ts as ts, c.value as value from counter c
join counter_track t on c.track_id = t.id order by c.track_id, c.ts
"""
OFFSET_US = 2500.0

# Without most rules: they cost more than all the rest.
FEW = ("desync", "exposed-communication")


def skewed() -> Measures:
    """16 ranks on two hosts, whose clocks differ by 2.5 ms; the last of them is always late."""
    tiny = Tiny(16, hosts=("one", "two"))
    tiny.groups |= {"dp": tuple(range(16)), "tp": (0, 1)}
    for i in range(50):
        for rank in range(16):
            at = i * 1000 + rank * 10 + (rank >= 8) * OFFSET_US + (rank == 13) * 200
            until = i * 1000 + 500 + (rank >= 8) * OFFSET_US
            tiny.collective(rank, "all_reduce", at, until - at, size=1 << 20, group="dp")
            tiny.kernel(rank, at - 90, 80.123)
            tiny.copy(rank, at - 5, 4, kind="HtoD", size=1000, source="host", destination="cuda:0")
            if rank < 2:
                tiny.collective(rank, "all_gather", until + 1, 9 - rank, size=1 << 10, group="tp")
    run = tiny.trace()
    called, ranks = run.rows("collectives"), run.rows("ranks")
    spans = {}
    for (rank,), at in rows_by(called.ints("rank")).items():
        start_ns = called.ints("start_ns")[at]
        spans[rank] = {"start_ns": start_ns.min() - 10**6, "end_ns": start_ns.max() + 10**6}
    each: Any = ranks.table.of_dicts([{**row, **spans[row["rank"]]} for row in ranks.dicts()])
    return replace(run, ranks=each)


RECORDED = (
    "straggler/gloo-4",
    "pipeline/gloo-4",
    "ddp_training/gloo-4",
    "reduce/gloo-4",
    "send_recv/gloo-4",
    "p2p_copies/hypercube-reconstructed",
)


@pytest.mark.parametrize("name", RECORDED)
def test_recordings(
    perfetto: Query, measured: Callable[[Path], Run], recorded: Path, tmp_path: Path, name: str
) -> None:
    check(perfetto, measured(recorded / name).analysis(select=FEW), tmp_path)


@pytest.mark.parametrize("name", ["hta_16gpu*", "gpupuzzlers_s*", "hta_dlrm*"])
def test_real_traces(
    perfetto: Query, measured: Callable[[Path], Run], real_traces: Path, tmp_path: Path, name: str
) -> None:
    check(perfetto, measured(next(real_traces.glob(name))).analysis(select=FEW), tmp_path)


def test_sixteen_ranks_on_two_clocks(perfetto: Query, tmp_path: Path) -> None:
    run = skewed()
    assert matched(run).clock.ints("offset_ns")[15] == pytest.approx(OFFSET_US * 1000, abs=10_000)
    check(perfetto, Run(run, "sixteen").analysis(select=FEW), tmp_path)


def check(perfetto: Query, analysis: Analysis, folder: Path) -> None:
    """Every slice, arrow, counter and track of the timeline, against the tables."""
    file = folder / "run.pftrace.gz"
    write_timeline(analysis, file)
    problems, slices, arrows, arguments, counters = perfetto(
        file, PROBLEMS, SLICES, ARROWS, ARGUMENTS, COUNTERS
    )
    assert problems == []
    run = analysis.measures
    drawn = pd.DataFrame(slices, columns=["track", "ts", "dur", "name", "depth"])
    kind = drawn["track"].map(kind_of_track)
    for what, expected in expected_slices(analysis).items():
        found = Counter(drawn.loc[kind == what, ["ts", "dur", "name"]].itertuples(index=False))
        assert found == Counter(map(tuple, expected)), what
    operations = drawn[(kind == "operations") & (drawn["depth"] == 0)]
    arrived, ended = (matched(run).waits.ints(name) for name in ("arrival_ns", "end_ns"))
    known = arrived != NULL
    expected = Counter(zip(arrived[known], (ended - arrived)[known], strict=True))
    found = Counter(operations[["ts", "dur"]].itertuples(index=False, name=None))
    assert not expected - found
    assert found.total() == len(run.rows("collectives"))
    check_parts(run, drawn[kind == "operations"])
    check_arrows(run, arrows)
    check_arguments(run, arguments)
    check_counters(run, counters)


def kind_of_track(name: str) -> str:
    words = name.split(" ", 2)
    if words[0] != "rank":
        return name
    if "," in name:
        return "operations"
    return next((w for w in ("steps", "stream", "thread", "waited for") if w in name), name)


def expected_slices(analysis: Analysis) -> dict[str, list[Any]]:
    run = analysis.measures

    def times(table: pd.DataFrame) -> tuple[Any, Any]:
        clocks, rank = clock_offsets(run), table["rank"].to_numpy()
        start = table["start_ns"].to_numpy()
        since, _ = clocks.on_run_clock(start, rank)
        till, _ = clocks.on_run_clock(start + table["duration_ns"].to_numpy(), rank)
        return since, till - since

    def named(table: pd.DataFrame, names: Any) -> list[Any]:
        return list(zip(*(part.tolist() for part in times(table)), names, strict=True))

    names = ("kernels", "copies", "ops", "blocking_calls", "steps")
    kernels, copies, ops, calls, steps = (run.rows(name).frame() for name in names)
    kind, label = copies["kind"].astype(object), steps["label"].astype(object)
    step = "ProfilerStep#" + steps["step"].astype(str)
    path = critical_pieces(run).frame() if path_of(run) is not None else None
    return {
        "stream": named(kernels, kernels["name"])
        + named(copies, kind.where(kind == "Memset", "copy " + kind)),
        "thread": named(ops, ops["name"]) + named(calls, calls["name"]),
        "steps": named(steps, label.where(label.notna(), step)),
        "findings": [
            (
                its.start_ns,
                max(its.end_ns - its.start_ns, 1),
                f"{n}. {its.rule}: {clean(its.summary)}",
            )
            for n, its in numbered_findings(analysis.verdict)
        ],
        "critical path": []
        if path is None
        else [
            (
                start,
                end - start,
                f"{kind}, rank {rank}" if pd.isna(op) else f"{kind} of {op}, rank {rank}",
            )
            for _, rank, kind, op, start, end in path.itertuples(index=False)
        ],
    }


def check_parts(run: Measures, drawn: pd.DataFrame) -> None:
    """Waits and transfers fill the operations whose wait is known."""
    waits = matched(run).waits.frame()
    inner = drawn[drawn["depth"] == 1]
    waiting = inner[inner["name"].str.startswith("wait")]
    assert sorted(waiting["dur"]) == sorted(waits["wait_ns"][waits["wait_ns"].fillna(0) > 0])
    known = waits[waits["wait_ns"].notna()]
    assert (inner["name"] == "transfer").sum() == len(known)
    assert inner["dur"].sum() == (known["end_ns"] - known["arrival_ns"]).sum()


def check_arrows(run: Measures, arrows: list[tuple[Any, ...]]) -> None:
    """From the last to arrive to each that waited for it, at that time."""
    waits = matched(run).waits.frame()
    guilty = waits[waits["caused_wait_ns"].fillna(0) > 0].drop_duplicates("operation")
    waited = waits[waits["wait_ns"].fillna(0) > 0].merge(guilty, on="operation")
    met = waited[waited["arrival_ns_x"] + waited["wait_ns_x"] == waited["arrival_ns_y"]]
    expected = Counter(met[["arrival_ns_y", "rank_y", "rank_x"]].itertuples(index=False, name=None))
    for since, till, tail, head in arrows:
        assert since == till
        assert tail.endswith("waited for")
        assert "," in head
    assert expected == Counter(
        (since, int(tail.split()[1]), int(head.split()[1].rstrip(",")))
        for since, _, tail, head in arrows
    )


def check_arguments(run: Measures, found: list[tuple[Any, ...]]) -> None:
    operations = matched(run).operations.frame().set_index("operation")
    waits = matched(run).waits.frame()
    of = waits["operation"]
    for key, values in (
        ("matched_by", operations["matched_by"].astype(object).loc[of]),
        ("dtype", run.rows("collectives").frame()["dtype"].astype(object)),
        ("size_bytes", operations["size_bytes"].loc[of]),
        ("wait_ns", waits["wait_ns"]),
        ("transfer_ns", operations["transfer_ns"].loc[of]),
    ):
        shown = Counter(value for *_, name, value in found if name == f"debug.{key}")
        assert shown == Counter(str(value) for value in values.dropna()), key


def check_counters(run: Measures, counters: list[tuple[Any, ...]]) -> None:
    table = pd.DataFrame(counters, columns=["track", "ts", "value"])
    assert (table["value"] >= 0).all()
    assert (table.groupby("track")["value"].last() == 0).all()
    queued = table[table["track"].str.contains("queued")]
    times = run.rows("collectives").only("rank", "launch_ns", "start_ns").frame().dropna()
    waits = times[times["launch_ns"] < times["start_ns"]]
    clocks, rank = clock_offsets(run), waits["rank"].to_numpy()
    begin, end = (
        clocks.on_run_clock(waits[name].to_numpy(np.int64), rank)[0]
        for name in ("launch_ns", "start_ns")
    )
    area = queued.groupby("track").apply(
        lambda its: (its["value"].to_numpy()[:-1] * np.diff(its["ts"])).sum(), include_groups=False
    )
    assert (0 if area.empty else area.sum()) == (end - begin).sum()
