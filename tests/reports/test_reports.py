"""Every report shows the same analysis, and takes no name for markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from markdown_it import MarkdownIt

import commtrace as ct
from commtrace.analysis import Analysis
from commtrace.diagnosis import Diagnosis, Finding, Note
from commtrace.measures import Measures
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.collectives import collectives_by_dimension
from commtrace.reports import Look, whatif
from commtrace.reports.content import critical_path, tables
from commtrace.reports.formats import json as json_report
from commtrace.reports.formats import markdown
from commtrace.reports.formats import text as terminal
from commtrace.run import Run
from commtrace.synthetic import Tiny

Make = Callable[..., Measures]
Expect = Callable[[str, str], None]

VALIDATOR = jsonschema.Draft202012Validator(json_report.schema())

HOSTILE = (
    "\x1b[2J\x1b]0;title\x07",
    "[bold red]markup[/bold red][/]",
    "a|b|c\n| --- |\n# heading",
    "`code` **bold** _it_ ~~no~~ <script>alert(1)</script> &lt;",
    "[link](http://evil.example) ![image](x) http://evil.example www.evil.example",
    "\u202edesrever \u200b\u2028 \ud800",
    "- item",
    "1. item",
    "x" * 5_000,
)


UNFIT = Finding(
    rule="unfit-trace",
    summary="no trace file for rank 4 of 5: waiting for it cannot be separated from transfer",
    ranks=(),
    streams=(),
    start_ns=0,
    end_ns=1,
    cost_ns=0,
    evidence=(),
    ruled_out=(),
    advice="record every rank in the same steps and give all files together",
    confidence="high",
)


def training(make_trace: Make, ranks: int) -> Analysis:
    """Rank r computes for 10 + r ms, then all reduce until 100 ms, half of it hidden."""
    ms = 1_000_000
    collective = {
        "op": "all_reduce",
        "group": "0",
        "group_size": ranks,
        "group_provenance": "metadata",
        "dtype": "bfloat16",
        "size_bytes": 40_000_000,
        "seq": 1,
        "stream": 20,
        "kind": "communication",
        "step": 1,
    }
    by_rank = [
        {"rank": r, "device": f"cuda:{r}", "start_ns": (10 + r) * ms, "duration_ns": (90 - r) * ms}
        for r in range(ranks)
    ]
    copy = {"kind": "HtoD", "source": "host", "memory": "pinned", "size_bytes": 25_000_000}
    trace = make_trace(
        kernels=[{**collective, **row} for row in by_rank]
        + [
            {**row, "kind": "compute", "start_ns": start * ms, "duration_ns": duration * ms}
            for row in by_rank
            for start, duration in ((0, 10 + row["rank"]), (50, 50))
        ],
        collectives=[{**collective, **row} for row in by_rank],
        copies=[
            {**copy, **row, "destination": row["device"], "start_ns": 101 * ms, "duration_ns": ms}
            for row in by_rank
        ],
        ranks=[
            {"rank": r, "file": f"rank{r}.json", "host": "node1", "world_size": ranks + 1}
            | {"start_ns": 0, "end_ns": 102 * ms}
            for r in range(ranks)
        ],
        groups=[
            {"rank": r, "group": "0", "backend": "nccl", "ranks": ",".join(map(str, range(ranks)))}
            for r in range(ranks)
        ],
        steps=[{"rank": r, "step": 1, "start_ns": 0, "duration_ns": ms} for r in range(ranks)],
        notes=(Note("missing-rank", f"rank {ranks} of {ranks + 1} has no trace", rank=None),),
    )
    # Rules come and go: what the reports are held against is none's.
    analysis = Run(trace, "traces/training").analysis(select=["unfit-trace"])
    judged = replace(
        analysis.verdict,
        diagnosis=Diagnosis((UNFIT,), {"cold-start": "no first one", "late-root": "no root"}),
    )
    return replace(analysis, verdict=judged)


def test_the_markdown_report(make_trace: Make, expect: Expect) -> None:
    expect("training.md", markdown.render(training(make_trace, 4)))


def test_the_json_report(make_trace: Make) -> None:
    document = json.loads(json_report.render(training(make_trace, 2)))
    VALIDATOR.validate(document)
    assert list(document) == json_report.schema()["required"]
    assert document["run"]["missing_ranks"] == [2]
    assert document["devices"][1]["exposed_communication_ns"] == 39_000_000
    assert document["collectives"][0]["count"] == 1
    assert document["collectives"][0]["complete"] == 1
    assert document["clock"][1] == {
        "rank": 1,
        "offset_ns": 0,
        "drift_ppm": 0.0,
        "error_ns": document["clock"][1]["error_ns"],
        "provenance": "host",
    }


def test_the_json_report_lists_operations_when_asked(make_trace: Make) -> None:
    analysis = training(make_trace, 2)
    document = json.loads(json_report.render(analysis, Look(operations=True)))
    VALIDATOR.validate(document)
    assert list(document) == list(json_report.schema()["properties"])
    assert document["operations"] == [
        {
            "group": "0",
            "seq": 1,
            "op": "all_reduce",
            "size_bytes": 40_000_000,
            "last_rank": 1,
            "arrival_ns": {"0": 10_000_000, "1": 11_000_000},
            "end_ns": {"0": 100_000_000, "1": 100_000_000},
            "matched_by": "sequence",
        }
    ]
    alone = json.loads(json_report.render(training(make_trace, 1), Look(operations=True)))
    assert alone["operations"] == []


def test_many_ranks_show_the_extremes(make_trace: Make) -> None:
    shown = terminal.render(training(make_trace, 64), Look(width=100))
    ranks = [int(line.split()[0]) for line in shown.splitlines() if "  cuda:" in line[:12]]
    assert ranks == [0, 1, 2, 3, 60, 61, 62, 63]
    assert "56 in between are not shown" in shown
    assert "54 more are not shown" in shown
    assert "56 more are not shown" in shown


def gloo_beside_gpus(make_trace: Make, ranks: int) -> Analysis:
    """Each rank computes on its GPU for 4 ms; on the CPU gloo communicates for 3 ms."""
    ms = 1_000_000
    each = [{"rank": rank, "start_ns": 0} for rank in range(ranks)]
    trace = make_trace(
        kernels=[{**row, "kind": "compute", "duration_ns": 4 * ms} for row in each],
        collectives=[
            {**row, "device": "cpu", "op": "barrier", "duration_ns": 3 * ms} for row in each
        ],
        ranks=[{**row, "file": f"rank{row['rank']}.json"} for row in each],
    )
    return Run(trace, "run").analysis(select=["straggler"])


def test_communication_on_the_cpu_of_a_gpus_rank_is_shown(make_trace: Make) -> None:
    shown = terminal.render(gloo_beside_gpus(make_trace, 2), Look(width=100))
    lines = [line.split() for line in shown.splitlines()]
    assert ["1", "cpu", "–", "–", "≤", "3.00", "ms", "≤", "3.00", "ms", "–", "–"] in lines
    assert "≤ all communication of the device" in shown
    many = terminal.render(gloo_beside_gpus(make_trace, 9), Look(width=100))
    assert "9 CPUs communicated, too, for up to 3.00 ms: not shown." in many
    assert "1 in between is not shown" in many


def test_the_headline_tells_the_gpus_of_one_rank_apart(make_trace: Make) -> None:
    both = [
        {"kind": kind, "device": f"cuda:{device}", "start_ns": start, "duration_ns": length}
        for device, exposed in ((0, 20), (1, 70))
        for kind, start, length in (("compute", 0, 100 - exposed), ("communication", 0, 100))
    ]
    analysis = Run(make_trace(kernels=both), "run").analysis(select=["straggler"])
    said = "Exposed communication: 20 % (rank 0, cuda:0) to 70 % (rank 0, cuda:1) of the time."
    assert said in terminal.render(analysis, Look(width=100))


@pytest.mark.parametrize("missing", [True, False])
def test_transfers_may_be_waiting_for_ranks_without_a_file(missing: bool) -> None:
    run = Tiny(ranks=2)
    for rank, step in product(range(2), range(4)):
        run.step(rank, step, 2000 * step, 2000)
        run.kernel(rank, 2000 * step, 900)
        run.collective(rank, "all_reduce", 2000 * step + 900, 1000, size=1 << 20)
    if missing:
        run.notes.append(Note("missing-rank", "no trace file for rank 2 of 3"))
    told = critical_path.sentence(run.trace())
    with_an_edit = whatif.as_text(Run(run.trace(), "run").replayed(["even"]), Look(width=200))
    for said in (told, with_an_edit.split("In all:")[1]):
        assert said is not None
        assert ("% transfer or waiting" in said) == missing
        assert "% transfer" in said


def test_a_group_of_one_rank_has_no_bandwidth(make_trace: Make) -> None:
    alone = {"op": "all_reduce", "group": "0", "group_size": 1, "size_bytes": 4_000_000}
    trace = make_trace(collectives=[{**alone, "start_ns": 0, "duration_ns": 5_000}])
    shown = terminal.render(Run(trace, "run").analysis(select=["straggler"]), Look(width=100))
    assert "0.000" not in shown
    assert "nothing crosses a link" in shown


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(make_trace: Make, width: int) -> None:
    analysis = hostile(make_trace)
    assert max(map(len, terminal.render(analysis, Look(width=width)).splitlines())) <= width


def test_what_ran_and_which_way_it_went_are_said_where_known(make_trace: Make) -> None:
    trace = make_trace(
        collectives=[
            {"op": "reduce_scatter", "executed": "all_reduce", "start_ns": 0, "duration_ns": 5}
        ],
        copies=[
            {"kind": "DtoD", "start_ns": 0, "duration_ns": 5},
            {"kind": "PtoP", "source": "cuda:1", "start_ns": 0, "duration_ns": 5},
        ],
        ranks=[{"file": "rank0.json"}],
    )
    analysis = Run(trace, "run").analysis()
    lines = terminal.render(analysis, Look(width=100)).splitlines()
    assert "(ran as all_reduce)" in lines
    assert [line.split()[:2] for line in lines if "–  " in line][-2:] == [
        ["0", "DtoD"],
        ["0", "cuda:1"],
    ]
    assert "| reduce_scatter, (ran as all_reduce) |" in markdown.render(analysis)


def test_what_ran_is_said_of_an_operation_that_no_host_called(make_trace: Make) -> None:
    calls = [{"op": None, "executed": "all_reduce", "start_ns": 0, "duration_ns": 5}]
    analysis = Run(make_trace(collectives=calls), "run").analysis(select=["straggler"])
    assert "| –, (ran as all_reduce) |" in markdown.render(analysis)


def test_colour_is_only_added(make_trace: Make) -> None:
    analysis = training(make_trace, 2)
    colourful = terminal.render(analysis, Look(color=True))
    assert "\x1b[" in colourful
    stripped = re.sub(r"\x1b\[[\d;]*m", "", colourful)
    plain = terminal.render(analysis)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def hostile(make_trace: Make) -> Analysis:
    names = [_as_read(name) for name in HOSTILE]
    trace = make_trace(
        kernels=[
            {"kind": "compute", "start_ns": 0, "duration_ns": 5, "device": name} for name in names
        ],
        collectives=[
            {"op": name, "group": name, "dtype": name, "start_ns": 0, "duration_ns": 5}
            for name in names
        ],
        copies=[
            {"kind": "HtoD", "source": name, "destination": name, "memory": name}
            | {"start_ns": 0, "duration_ns": 5}
            for name in names
        ],
        ranks=[{"rank": i, "file": name, "host": name} for i, name in enumerate(HOSTILE)],
        groups=[{"group": name, "backend": name} for name in names],
        notes=tuple(Note(name, name, file=name) for name in HOSTILE),
    )
    return Run(trace, HOSTILE[3]).analysis()


def _as_read(name: str) -> str:
    """No trace's text has lone surrogates when it is read; a file's name can."""
    return name.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_no_markup(make_trace: Make, name: str) -> None:
    read = _as_read(name)
    trace = make_trace(
        collectives=[{"op": read, "group": read, "dtype": read, "start_ns": 0, "duration_ns": 5}],
        groups=[{"group": read, "backend": read}],
        ranks=[{"file": name, "host": name}],
        notes=(Note(name, name, file=name),),
    )
    analysis = Run(trace, name).analysis(select=["straggler"])

    shown = terminal.render(analysis, Look(width=300))
    assert all(c.isprintable() for c in shown.replace("\n", ""))

    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown.render(analysis))
    inline = [child.type for token in tokens for child in token.children or ()]
    assert set(inline) <= {"text", "text_special", "softbreak"}
    assert [t.type for t in tokens].count("heading_open") == 4 + (
        len(devices(analysis.measures)) > 0
    )
    assert [t.type for t in tokens].count("bullet_list_open") == 2
    rows = [t.type for t in tokens].count("tr_open")
    assert rows == 2 + 2 * (len(devices(analysis.measures)) > 0)


@pytest.mark.parametrize("render", [terminal.render, markdown.render])
def test_an_empty_trace_is_no_error(make_trace: Make, render: Callable[..., str]) -> None:
    analysis = Run(make_trace(), "empty").analysis()
    assert "No communication" in render(analysis)
    VALIDATOR.validate(json.loads(json_report.render(analysis)))


def test_the_schema_is_shipped_and_strict() -> None:
    shipped = resources.files("commtrace.reports") / "analysis.schema.json"
    assert json.loads(shipped.read_text("utf-8")) == json_report.schema(), "run `make docs`"
    jsonschema.Draft202012Validator.check_schema(json_report.schema())
    for node in _nodes(json_report.schema()):
        assert node.get("description"), node
        if node.get("type") == "object" and "properties" in node:
            assert node["additionalProperties"] is False
            optional = set(node["properties"]).difference(node["required"])
            assert optional <= ({"operations"} if "$schema" in node else set())
        for name, field in node.get("properties", {}).items():
            assert not name.endswith("_ns") or field["unit"] == "ns"
            assert not name.endswith("_gb_s") or field["unit"] == "GB/s"
            assert not name.endswith("bytes") or field["unit"] == "bytes"


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    below = [*node.get("properties", {}).values()]
    if "properties" not in node.get("items", {"properties": None}):
        below.append(node["items"])
    if "properties" in node.get("items", {}):
        below += node["items"]["properties"].values()
    return [node, *(found for child in below for found in _nodes(child))]


@pytest.mark.parametrize(
    "name",
    [
        "gpupuzzlers_malformed_json.json.gz",
        "gpupuzzlers_streams_copies.json.gz",
        "hta_16gpu_three_nccl_streams.json.gz",
        "hta_a100_resnet_nccl_metadata.json.gz",
        "hta_cpu_only_gloo_rank34.json.gz",
        "hta_cuda_event_sync.json.gz",
        "hta_dlrm_2_of_128",
        "hta_v100_allreduce_no_metadata.json.gz",
        "tracelens_mi300_resnet_rccl.json.gz",
    ],
)
def test_real_traces_keep_the_contract(
    measured: Callable[[Path], ct.Run], real_traces: Path, name: str
) -> None:
    analysis = measured(real_traces / name).analysis()
    document = json.loads(json_report.render(analysis))
    VALIDATOR.validate(document)
    for row in document["devices"]:
        parts = row["exposed_communication_ns"] + row["overlapped_communication_ns"]
        assert parts == row["communication_ns"]
    for width in (80, 120):
        lines = terminal.render(analysis, Look(width=width)).splitlines()
        assert max(map(len, lines)) <= width
    assert markdown.render(analysis)


@pytest.mark.parametrize(
    ("how", "why"), [("ranks", "all ranks of the job took part"), ("groups", "all groups")]
)
def test_a_deduced_group_size_is_marked(make_trace: Make, how: str, why: str) -> None:
    known = training(make_trace, 4)
    terminal.render(known)
    run = replace(known.measures)
    json_report.render(known)
    for key, table in known.measures.known.items():
        if key[0] != "rows" and key[1].startswith("collectives"):
            rows = [{**row, "group_size_deduced": how} for row in table.dicts()]
            run.known[key] = table.table.of_dicts(rows)
    deduced = replace(known, measures=run)
    for render in (terminal.render, markdown.render):
        assert "4†" in render(deduced)
        assert f"† n deduced: {why}" in " ".join(render(deduced).split())
        assert "†" not in render(known)
    for analysis, value in ((deduced, how), (known, None)):
        document = json.loads(json_report.render(analysis))
        VALIDATOR.validate(document)
        (row,) = document["collectives"]
        assert row["group_size_deduced"] == value


def test_sibling_groups_are_one_line_by_their_dimension() -> None:
    run = Tiny(ranks=4)
    run.groups = {"tp:0": (0, 1), "tp:1": (2, 3)}
    for group, members in run.groups.items():
        for rank in members:
            run.collective(rank, "all_reduce", 0, 100, size=1 << 20, group=group)
    section = tables.collectives(collectives_by_dimension(run.trace()), 100_000, 0, [])
    assert [cells[:3] for cells in section.cells] == [["all_reduce", "tp, 2 groups", "2"]]


def test_where_the_program_calls_it_stands_below_its_operation() -> None:
    run = Tiny(2, backend="gloo")
    for step, line in enumerate(("a/train.py:57 in main, by b.py:3", "validation_loop.py:9")):
        for rank in (0, 1):
            at = 1000.0 * step
            run.collective(rank, "all_reduce", at, 100, size=400 << step, called_at=line)
        for rank in (0, 1):
            at = 1000.0 * step + 500
            run.collective(rank, "all_reduce", at, 100, size=64, called_at=f"gan.py:{step}")
    lines = terminal.render(Run(run.trace(), "a run").analysis()).splitlines()
    assert "train.py:57" in lines
    assert lines.index("gan.py:1") == lines.index("gan.py:0") + 1
    assert "…idation_loop.py:9" in lines


def test_less_than_is_no_lower_bound() -> None:
    run = Tiny(ranks=2)  # of which one was recorded: how long it waited is unknown
    run.collective(0, "all_reduce", 0, 100, size=4)
    section = tables.collectives(collectives_by_dimension(run.trace()), 100_000, 0, [])
    (cells,) = section.cells
    assert "<0.001" in cells
