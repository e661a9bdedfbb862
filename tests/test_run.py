"""A run as a notebook holds it, and its analysis against a plain reading of the files."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import commtrace as ct
from commtrace.diagnosis import Note
from commtrace.measures import Measures
from commtrace.reports.formats import text as terminal
from commtrace.run import Run
from commtrace.table import rows

Make = Callable[..., Measures]
Interval = tuple[int, int]

GPU_TRACES = (
    "gpupuzzlers_streams_copies.json.gz",
    "hta_16gpu_three_nccl_streams.json.gz",
    "hta_a100_resnet_nccl_metadata.json.gz",
    "hta_cuda_event_sync.json.gz",
    "hta_v100_allreduce_no_metadata.json.gz",
    "tracelens_mi300_resnet_rccl.json.gz",
    "hta_dlrm_2_of_128/sampled_rank-0.json.gz",
    "hta_dlrm_2_of_128/sampled_rank-1.json.gz",
)


@pytest.mark.parametrize("name", GPU_TRACES)
def test_a_gpus_time_is_what_a_plain_reading_gives(real_traces: Path, name: str) -> None:
    kinds: dict[int, dict[str, list[Interval]]] = {}
    for event in _events(real_traces / name):
        args = event.get("args", {})
        kind = {"kernel": "compute", "Kernel": "compute"}.get(event.get("cat", ""), "copy")
        if event.get("cat") not in ("kernel", "Kernel", *_COPIES):
            continue
        if kind == "compute" and event["name"].startswith(("nccl", "void nccl")):
            kind = "communication"
        device = kinds.setdefault(args.get("device", args.get("inDevice")), {})
        device.setdefault(kind, []).append(_interval(event))
    expected = {f"cuda:{device}": _times(device_kinds) for device, device_kinds in kinds.items()}
    assert _told(ct.load(real_traces / name)) == expected


def test_a_cpus_time_is_what_a_plain_reading_gives(recorded: Path) -> None:
    folder = recorded / "overlap" / "gloo-4"
    run = ct.load(folder)
    for rank, file in zip(run.ranks["rank"], run.ranks["file"], strict=True):
        events = list(_events(Path(file)))
        ops = [event for event in events if event.get("cat") == "cpu_op"]
        annotations = [event for event in events if event.get("cat") == "user_annotation"]
        outermost = [op for op in ops if not any(_holds(other, op) for other in ops)]
        kinds = {
            "compute": [_interval(op) for op in outermost if not op["name"].startswith("c10d::")],
            "communication": [_interval(e) for e in annotations if e["name"].startswith("gloo:")],
        }
        assert _told(run, rank) == {"cpu": _times(kinds)}


def test_overlap_by_each_choice(recorded: Path) -> None:
    run = ct.load(recorded / "overlap" / "gloo-4")
    steps = run.overlap(by="step")
    assert set(steps["step"]) <= set(run.steps["step"])
    assert steps["communication_ns"].sum() == run.overlap()["communication_ns"].sum()
    assert (run.overlap(by="stream")["overlap_ns"] > 0).all()
    with pytest.raises(ct.UsageError, match="'device', 'stream', 'step'"):
        run.overlap(by="rank")  # type: ignore[arg-type]


def test_what_comparing_ranks_tells(recorded: Path) -> None:
    run = ct.load(recorded / "straggler" / "gloo-4")
    assert len(run.waits) == len(run.collectives)
    assert set(run.waits["operation"]) == set(run.operations["operation"])
    assert list(run.clock["rank"]) == list(run.ranks["rank"])
    assert run.skew()["wait_ns_total"].sum() == run.waits["wait_ns"].sum()
    shown = run._repr_html_()
    assert "rank 1 delays every step" in shown
    assert "Rank 1 arrived last" not in shown, "the finding says it"
    ignored = run.analysis(ignore=["straggler", "device-late"])
    assert "Rank 1 arrived last" in terminal.render(ignored)


def test_a_run_shows_itself_in_a_line(recorded: Path) -> None:
    run = ct.load(recorded / "straggler" / "gloo-4")
    shown = repr(run)
    assert re.fullmatch(r"<Run '.*straggler/gloo-4': 4 ranks, [\d,]+ events, [\d.]+ ms>", shown)


def test_a_run_is_analysed_once_however_often_it_is_shown(
    make_trace: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(make_trace(ranks=[{"file": "a.json"}]), "run")
    shown = run._repr_html_()
    monkeypatch.setattr("commtrace.rules.diagnose", None)
    assert run._repr_html_() == shown


def test_unknown_sizes_are_noted(make_trace: Make) -> None:
    its = {"start_ns": 0, "duration_ns": 5}
    sized, unsized, barrier = (
        {**its, "op": "all_reduce", "size_bytes": 4},
        {**its, "op": "all_reduce"},
        {**its, "op": "barrier"},
    )
    unknown = (
        Run(make_trace(collectives=[sized, unsized, unsized, barrier]), "run").analysis().notes
    )
    assert [(note.code, note.message[:36]) for note in unknown] == [
        ("sizes-unknown", "2 of 3 communication events have no ")
    ]
    assert Run(make_trace(collectives=[sized, barrier]), "run").analysis().notes == ()


def test_a_diagnosis_can_be_narrowed(recorded: Path) -> None:
    run = ct.load(recorded / "straggler" / "gloo-4")
    (finding,) = run.diagnose(select=["straggler"]).findings
    assert finding.ranks == (1,)
    never = {"straggler": {"min_step_share": 2.0}}
    assert run.diagnose(select=["straggler"], thresholds=never) == ct.Diagnosis()
    assert "straggler" not in {f.rule for f in run.diagnose(ignore=["straggler"]).findings}


def test_exposure_and_queueing(recorded: Path) -> None:
    run = ct.load(recorded / "overlap" / "gloo-4")
    whole = run.overlap()["exposed_communication_ns"].sum()
    for by in ("group", "op", "step", "phase"):
        assert run.exposure(by=by)["exposed_ns"].sum() == whole  # type: ignore[arg-type]
    with pytest.raises(ct.UsageError, match="'group', 'op', 'step', 'phase'"):
        run.exposure(by="rank")  # type: ignore[arg-type]
    assert (run.queueing()["queue_ns_p50"] >= 0).all()


def test_the_tables_are_the_traces(make_trace: Make) -> None:
    trace = make_trace(ranks=[{"file": "a.json"}], notes=(Note("code", "message"),))
    run = Run(trace, "name")
    assert run.notes == trace.notes
    assert run.manifest is None
    for table in ("kernels", "copies", "collectives", "ops", "steps", "groups", "ranks"):
        assert getattr(run, table) is getattr(trace, table)


def test_a_manifest_is_found_beside_the_traces_or_above_the_nodes(tmp_path: Path) -> None:
    for rank in (0, 1):
        folder = tmp_path / f"node{rank}"
        folder.mkdir()
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 9, "dur": 1}
        told = {"rank": rank, "world_size": 2}
        trace = {"distributedInfo": told, "traceEvents": [kernel]}
        (folder / "trace.json").write_text(json.dumps(trace))
        (folder / "manifest.json").write_text(json.dumps({"node": rank}))
    assert ct.load(tmp_path / "node1").manifest == {"node": 1}
    several = ct.load(tmp_path)
    assert several.manifest == {"node": 0}
    assert several.notes == ()
    (tmp_path / "manifest.json").write_text(json.dumps({"nodes": 2}))
    assert ct.load(tmp_path).manifest == {"nodes": 2}
    for rank in (0, 1):
        (tmp_path / f"node{rank}" / "manifest.json").unlink()
    above = ct.load([tmp_path / "node0" / "trace.json", tmp_path / "node1"])
    assert (above.manifest, above.notes) == ({"nodes": 2}, ())


def test_the_summary_names_what_is_there_and_what_is_missing(make_trace: Make) -> None:
    ranks = [
        {"rank": 2, "file": "c", "world_size": 4, "host": "b", "start_ns": 0, "end_ns": 50},
        {"rank": 0, "file": "a", "world_size": 4, "host": "a", "start_ns": 10, "end_ns": 40},
    ]
    groups = [{"group": "0", "backend": "nccl"}, {"group": "1", "backend": "gloo"}]
    steps = [{"step": step, "start_ns": 0, "duration_ns": 1} for step in (3, 4, 3)]
    summary = Run(make_trace(ranks=ranks, groups=groups, steps=steps), "x").analysis().run
    assert (summary.ranks, summary.missing_ranks, summary.world_size) == ((0, 2), (1, 3), 4)
    assert (summary.backends, summary.hosts) == (("gloo", "nccl"), ("a", "b"))
    assert (summary.span_ns, summary.steps) == (50, 2)


def test_pictures_take_and_return_axes(recorded: Path) -> None:
    from matplotlib.figure import Figure

    run = ct.load(recorded / "overlap" / "gloo-4")
    for draw in (run.plot.breakdown, run.plot.timeline, run.plot.bandwidth):
        ax = Figure().subplots()
        assert draw(ax=ax) is ax
        assert ax.get_xlabel()


def test_tables_go_to_parquet_and_back(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    run = ct.load(recorded / "straggler" / "gloo-4", workers=1)
    run.to_parquet(tmp_path / "tables")
    for name in ("collectives", "waits", "operations", "steps", "clock"):
        back = pd.read_parquet(tmp_path / "tables" / f"{name}.parquet")
        # A column of nulls comes back without its categories.
        mine, its = (t.astype(object).where(t.notna(), None) for t in (getattr(run, name), back))
        pd.testing.assert_frame_equal(its, mine)
    (tmp_path / "file").touch()
    with pytest.raises(ct.UsageError, match="give another folder"):
        run.to_parquet(tmp_path / "file" / "below")


def test_parquet_without_pyarrow_says_what_to_install(
    make_trace: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.run.find_spec", lambda _: None)
    with pytest.raises(ct.UsageError, match=r"commtrace\[parquet\]"):
        Run(make_trace(), "run").to_parquet(tmp_path)


def test_waiting_over_time_is_one_groupby(recorded: Path) -> None:
    run = ct.load(recorded / "straggler" / "gloo-4", workers=1)
    by_step = run.waits.groupby(["rank", "step", "op"], observed=True)["wait_ns"].sum()
    assert by_step.sum() == run.waits["wait_ns"].sum() > 0
    assert {"group", "dimension"} <= set(run.waits)


def test_a_diagnosis_shows_itself_as_text_and_as_html() -> None:
    finding = ct.Finding(
        *("straggler", "rank 1 <b> is late", (1,), (), 0, 9, 4_000_000),
        *((ct.Evidence("<i>", 5, "ns"),), (), "split & even", "high"),
    )
    diagnosis = ct.Diagnosis((finding,))
    assert str(diagnosis).splitlines() == [
        "1. rank 1 <b> is late",
        "potential saving: up to 4 ms in all",
        "→ split & even",
        "high confidence · straggler",
    ]
    shown = diagnosis._repr_html_()
    assert "rank 1 &lt;b&gt; is late" in shown
    assert "<td>&lt;i&gt;</td><td>5 ns</td>" in shown
    none = ct.Diagnosis((), {"jitter": "needs steps"})
    assert str(none) == "No findings; 1 rule skipped."
    assert "No findings" in none._repr_html_()


def test_a_notebook_shows_names_as_text(make_trace: Make) -> None:
    trace = make_trace(
        collectives=[{"op": "<script>alert(1)</script>", "start_ns": 0, "duration_ns": 9}],
        ranks=[{"file": "<b>", "host": "<img src=x>"}],
        notes=(Note("<i>", "<u>"),),
    )
    html = Run(trace, "<h1>")._repr_html_()
    assert "&lt;script&gt;" in html
    for tag in ("<script", "<img", "<i>", "<u>", "<h1>"):
        assert tag not in html


def test_hta_reads_the_same_files(real_traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hta")
    monkeypatch.delenv("HTA_DISABLE_NS_ROUNDING", raising=False)
    script = (
        "import sys, commtrace; hta = commtrace.load(sys.argv[1]).hta(); "
        "print(sorted(hta.t.traces), len(hta.t.traces[0]) > 1000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, real_traces / "hta_a100_resnet_nccl_metadata.json.gz"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "[0] True"


def test_without_hta_the_remedy_is_named(make_trace: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.run.find_spec", lambda name: None)
    with pytest.raises(ct.UsageError, match="pip install traceinsight"):
        Run(make_trace(), "x").hta()


def test_importing_commtrace_loads_none_of_its_libraries() -> None:
    libraries = ("numpy", "pandas", "torch", "matplotlib", "typer")
    script = f"import sys, commtrace; print([m for m in {libraries} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert done.stdout.strip() == b"[]"


_COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")


def _events(path: Path) -> Iterable[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    return (event for event in events if event.get("ph") == "X")


def _interval(event: dict[str, Any]) -> Interval:
    start = int(Decimal(event["ts"]) * 1000)
    return start, start + int(Decimal(event["dur"]) * 1000)


def _holds(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    if outer is inner or outer["tid"] != inner["tid"]:
        return False
    (a, b), (c, d) = _interval(outer), _interval(inner)
    return a <= c and d <= b and (a, b) != (c, d)


def _times(kinds: dict[str, list[Interval]]) -> dict[str, int]:
    compute, communication, copy = (
        _length(kinds.get(kind, [])) for kind in ("compute", "communication", "copy")
    )
    either = _length([*kinds.get("compute", []), *kinds.get("communication", [])])
    every = [interval for intervals in kinds.values() for interval in intervals]
    span = max(end for _, end in every) - min(start for start, _ in every)
    return {
        "span_ns": span,
        "compute_ns": compute,
        "communication_ns": communication,
        "copy_ns": copy,
        "overlapped_communication_ns": compute + communication - either,
        "exposed_communication_ns": either - compute,
        "idle_ns": span - _length(every),
    }


def _length(intervals: list[Interval]) -> int:
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def _told(run: Run, rank: int | None = None) -> dict[str, dict[str, int]]:
    table = rows(run.overlap())
    names = _times({"compute": [(0, 0)]})
    return {
        row["device"]: {name: row[name] for name in names}
        for row in table
        if rank in (None, row["rank"])
    }


@pytest.mark.parametrize("devices", ["H200", 4, [1, None, "x"], [{"name": 7}, {}]])
def test_devices_in_anybodys_manifest_break_no_report(devices: Any, tmp_path: Path) -> None:
    rank = {"distributedInfo": {"rank": 0}, "traceEvents": []}
    (tmp_path / "rank0.json").write_text(json.dumps(rank))
    (tmp_path / "manifest.json").write_text(json.dumps({"devices": devices}))
    assert ct.load(tmp_path, cache=False).analysis().run.ranks == (0,)
