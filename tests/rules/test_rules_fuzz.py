"""Whatever the tables: an analysis without an exception, a warning or an impossible number.

``COMMTRACE_FUZZ`` sets how many traces are tried, ``COMMTRACE_FUZZ_FROM`` the first seed; each
four are a test, so that a long run shows how far it is, and a fault at once, with its seed.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from commtrace import comms
from commtrace import trace_tables as schema
from commtrace.analysis import Analysis
from commtrace.measures import Measures
from commtrace.metrics.run.whole import whole
from commtrace.reports import Look, notebook
from commtrace.reports.formats import json as as_json
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.rules import RULES
from commtrace.run import Run

TRACES = int(os.environ.get("COMMTRACE_FUZZ", "8"))
FIRST = int(os.environ.get("COMMTRACE_FUZZ_FROM", "0"))
SEEDS = range(FIRST, FIRST + TRACES)
PARTS = [SEEDS[at : at + 4] for at in range(0, TRACES, 4)]
SLOW_S = 10
RECORDED = Path(__file__).parents[2] / "traces"
NAMES = sorted(path.name for path in RECORDED.iterdir() if path.is_dir())

Rows = list[dict[str, Any]]
Tables = dict[str, Rows]
EVENTS = ("kernels", "copies", "collectives", "ops")
SIZES = ("size_bytes", "in_bytes", "out_bytes")
HOSTILE = ("", "a|b <b>`x`</b> [red]", "x" * 300, "0", "\u202e\x1b[2J")


@cache
def sources() -> list[tuple[Tables, Measures]]:
    traces = [make() for rule in RULES.values() for make in (rule.bad, rule.good)]
    small = [
        one for one in traces if sum(len(one.rows(t)) for t in ("kernels", "collectives")) < 500
    ]
    return [({t.name: one.rows(t.name).dicts() for t in schema.TABLES}, one) for one in small]


def some(table: Rows, dice: random.Random) -> Rows:
    """One row, a few, those of one rank, or all."""
    if not table:
        return []
    match dice.randrange(4):
        case 0:
            return [dice.choice(table)]
        case 1:
            return dice.sample(table, dice.randrange(1, len(table) + 1))
        case 2:
            rank = dice.choice(table)["rank"]
            return [row for row in table if row["rank"] == rank]
    return table


def sizes(tables: Tables, dice: random.Random) -> None:
    name = dice.choice(SIZES)
    size = dice.choice([None, 0, 1, 1000, 1 << 45])
    for row in some(tables["collectives"], dice):
        row[name] = size if dice.random() < 0.7 else row[name] and row[name] * dice.randrange(1, 9)
    for row in some(tables["copies"], dice):
        row["size_bytes"] = size


def groups(tables: Tables, dice: random.Random) -> None:
    name = dice.choice([None, "0", "1", "other"])
    for row in some(tables["collectives"], dice):
        row["group"] = name
        row["group_size"] = dice.choice([None, 1, 2, 3, 100_000, row["group_size"]])
    for row in some(tables["groups"], dice):
        row["ranks"] = dice.choice([None, "0", "0,1", "0,1,2,3,4,5,6,7", row["ranks"]])
        row["group"] = dice.choice([row["group"], "1"])


def sequence(tables: Tables, dice: random.Random) -> None:
    for row in some(tables["collectives"], dice):
        row["seq"] = dice.choice([None, 0, 1, dice.randrange(20), row["seq"]])


def streams(tables: Tables, dice: random.Random) -> None:
    for name in EVENTS[:3]:
        for row in some(tables[name], dice):
            row["stream"] = dice.choice([0, 7, 20, -1])
            row["device"] = dice.choice([row["device"], "cuda:0", "cuda:1", "cpu"])


def shuffled(tables: Tables, dice: random.Random) -> None:
    for name in dice.sample([*EVENTS, "steps"], 2):
        picked = some(tables[name], dice)
        starts = [row["start_ns"] for row in picked]
        dice.shuffle(starts)
        for row, start in zip(picked, starts, strict=True):
            row["start_ns"] = start
    for name in EVENTS:
        if dice.random() < 0.5:
            dice.shuffle(tables[name])


def drifting(tables: Tables, dice: random.Random) -> None:
    rank, ppm = dice.randrange(4), dice.choice([0, 1, 1000, -300_000])
    offset = dice.choice([0, 1000, -5_000_000, 86_400_000_000_000, -(10**15)])
    starts = [row["start_ns"] for name in EVENTS for row in tables[name]]
    first = min(starts, default=0)
    for name in (*EVENTS, "steps"):
        for row in tables[name]:
            if row["rank"] == rank:
                row["start_ns"] += offset + (row["start_ns"] - first) * ppm // 1_000_000
                row["duration_ns"] += row["duration_ns"] * ppm // 1_000_000
                if row.get("launch_ns") is not None:
                    row["launch_ns"] += offset


def ranks(tables: Tables, dice: random.Random) -> None:
    to = dice.choice([0, 1, 2, 1_000_000])
    rank = dice.randrange(3)
    for table in tables.values():
        for row in table:
            if row["rank"] == rank:
                row["rank"] = to
    if dice.random() < 0.3:
        for row in some(tables["ranks"], dice):
            row["world_size"] = dice.choice([None, 1, 8, 100_000])
            row["host"] = dice.choice([None, "a", "b"])


def durations(tables: Tables, dice: random.Random) -> None:
    for name in dice.sample(EVENTS, 2):
        times = dice.choice([0, 0, 0.01, 1000])
        for row in some(tables[name], dice):
            row["duration_ns"] = int(row["duration_ns"] * times)


def missing(tables: Tables, dice: random.Random) -> None:
    table = dice.choice(schema.TABLES[:7])
    nullable = [c for c in table.columns if c.dtype in ("Int64", "category")]
    column = dice.choice(nullable) if nullable else None
    if column is None or column.name in ("device", "kind", "file"):
        return
    for row in some(tables[table.name], dice):
        row[column.name] = None


def steps(tables: Tables, dice: random.Random) -> None:
    match dice.randrange(4):
        case 0:
            for row in some(tables["steps"], dice):
                row["duration_ns"] = dice.choice([0, 2, 1000, row["duration_ns"] * 100])
        case 1:
            gone = {id(row) for row in some(tables["steps"], dice)}
            tables["steps"] = [row for row in tables["steps"] if id(row) not in gone]
        case 2:
            for row in some(tables["steps"], dice):
                row["step"] = dice.randrange(4)
                row["label"] = dice.choice([None, row["label"], *HOSTILE])
        case 3:
            for name in EVENTS:
                for row in some(tables[name], dice):
                    row["step"] = dice.choice([None, 0, 3])


def lost(tables: Tables, dice: random.Random) -> None:
    for name in dice.sample(list(tables), 2):
        gone = {id(row) for row in some(tables[name], dice)}
        left = [row for row in tables[name] if id(row) not in gone]
        tables[name] = left or tables[name] if name == "ranks" else left


def doubled(tables: Tables, dice: random.Random) -> None:
    name = dice.choice(list(tables))
    tables[name] = tables[name] + [dict(row) for row in some(tables[name], dice)]


def operations(tables: Tables, dice: random.Random) -> None:
    column = dice.choice(["op", "executed", "dtype", "peer", "root", "asynchronous", "comms_id"])
    for row in some(tables["collectives"], dice):
        row[column] = {
            "op": dice.choice([None, *comms.OPERATIONS]),
            "executed": dice.choice([None, *comms.OPERATIONS]),
            "dtype": dice.choice([None, "float32", "float8_e4m3fn", "int64"]),
            "peer": dice.choice([None, 0, 1, 2, 99]),
            "root": dice.choice([None, 0, 1, 99]),
            "asynchronous": dice.choice([None, 0, 1]),
            "comms_id": dice.choice([None, "1", "2"]),
        }[column]


def launches(tables: Tables, dice: random.Random) -> None:
    for name in EVENTS[:3]:
        by = dice.choice([None, -1_000_000_000, -1, 0, 1000, 10**12])
        for row in some(tables[name], dice):
            row["launch_ns"] = by if by is None else row["start_ns"] + by


def names(tables: Tables, dice: random.Random) -> None:
    for name in ("kernels", "collectives", "ops"):
        said = dice.choice([*HOSTILE, "ampere_bf16_gemm", "ncclDevKernel_AllReduce_TREE"])
        for row in some(tables[name], dice):
            row["name"] = said
            if "kind" in row and dice.random() < 0.3:
                row["kind"] = dice.choice(["compute", "communication"])


MUTATIONS: tuple[Callable[[Tables, random.Random], None], ...] = (
    sizes,
    groups,
    sequence,
    streams,
    shuffled,
    drifting,
    ranks,
    durations,
    missing,
    steps,
    lost,
    doubled,
    operations,
    launches,
    names,
)


def mutated(seed: int) -> Measures:
    dice = random.Random(seed)
    source, whole_trace = dice.choice(sources())
    tables = {name: [dict(row) for row in table] for name, table in source.items()}
    for _ in range(dice.choice([1, 1, 2, 4, 8])):
        dice.choice(MUTATIONS)(tables, dice)
    for rank in sorted({row["rank"] for row in (*tables["groups"], *events(tables))}):
        if rank not in {row["rank"] for row in tables["ranks"]}:
            tables["ranks"].append({**source["ranks"][0], "rank": rank})
    for row in tables["ranks"]:
        its = [one for one in events(tables) if one["rank"] == row["rank"]]
        row["start_ns"] = min((one["start_ns"] for one in its), default=None)
        row["end_ns"] = max((one["start_ns"] + one["duration_ns"] for one in its), default=None)
    made: Any = {table.name: table.of_dicts(tables[table.name]) for table in schema.TABLES}
    manifest = whole_trace.manifest if dice.random() < 0.8 else None
    return replace(whole_trace, **made, manifest=manifest)


def events(tables: Tables) -> Rows:
    return [row for name in (*EVENTS, "steps") for row in tables[name]]


def looked_at(trace: Measures) -> Analysis:
    began = time.process_time()
    analysis = Run(trace, "a.json").analysis()
    texts = [terminal.render(analysis), markdown.render(analysis), notebook.render(analysis)]
    document = json.loads(as_json.render(analysis, Look(operations=True)))
    took = time.process_time() - began
    assert took < SLOW_S, f"it takes {took:.0f} s"
    # A link may do better than it usually does.
    said = re.findall(r"([\d,]*\d) %(?!\s+of\s+what)", texts[0])
    shares = [int(share.replace(",", "")) for share in said]
    assert max(shares, default=0) <= 100, "a share above 100 %"
    most, present = whole(trace).time_ns, set(trace.rows("ranks").ints("rank").tolist())
    assert most <= document["run"]["span_ns"], "a share of more than the run"
    for finding in analysis.verdict.diagnosis.findings:
        what = f"{finding.rule}: "
        assert 0 <= finding.cost_ns <= most, what + "its cost"
        assert finding.start_ns <= finding.end_ns, what + "it ends before it starts"
        assert set(finding.ranks) <= present, what + "ranks that are not there"
        assert len(finding.summary) < 400, what + "a long summary"
        assert "nan" not in finding.summary + finding.advice, what + "no number"
        for one in finding.evidence:
            share = "share" in one.name or one.name.endswith((" steps' time", " run's time"))
            assert not share or one.value <= 100, f"{what}{one.name} is {one.value}"
    return analysis


SHOWED = (14, 72, 134, 155, 223, 456, 487, 959, 4621, 5737, 60398, 101516, 110756, 120710, 150060)


@pytest.mark.parametrize("seed", [*SHOWED, 161677, 170429])
def test_mutated_traces_that_showed_a_fault(seed: int) -> None:
    looked_at(mutated(seed))


@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_mutated_traces(seeds: range) -> None:
    for seed in seeds:
        try:
            looked_at(mutated(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error.__cause__ or error}") from error


@pytest.mark.parametrize(
    "name", sorted({path.name for path in RECORDED.iterdir() if path.is_dir()})
)
def test_every_recording(measured: Callable[[Path], Run], name: str) -> None:
    for folder in sorted(RECORDED.glob(f"{name}/*/")):
        looked_at(measured(folder).measures)


def test_every_real_trace(measured: Callable[[Path], Run], real_traces: Path) -> None:
    for path in sorted(real_traces.iterdir()):
        if path.name.endswith(".gz") or path.name == "hta_dlrm_2_of_128":
            looked_at(measured(path).measures)
