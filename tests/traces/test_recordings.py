"""The analysis finds in each shipped recording what the workload's code called."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from expected import expected

from commtrace.record.workloads import find, parse
from commtrace.run import Run

TRACES = Path(__file__).parents[2] / "traces"
FOLDERS = sorted(path.parent for path in TRACES.glob("*/*-4*/expected.json"))
CASES = [pytest.param(folder, id=f"{folder.parent.name}/{folder.name}") for folder in FOLDERS]

Json = dict[str, Any]


def _json(path: Path) -> Json:
    data: Json = json.loads(path.read_text("utf-8"))
    return data


def test_all_recordings_are_there() -> None:
    from make import RECORDINGS

    assert {recording.folder for recording in RECORDINGS} == set(FOLDERS)


@pytest.mark.parametrize("folder", CASES)
def test_its_manifest_poses_the_workloads_question(folder: Path) -> None:
    asked = _json(folder / "manifest.json")["workload"]
    workload = parse(find(asked["name"]))
    assert (asked["question"], tuple(asked["answer"])) == (workload.question, workload.answer)


@pytest.mark.parametrize("folder", CASES)
def test_expected_is_what_the_code_calls(folder: Path) -> None:
    truth = json.loads(json.dumps(expected(_json(folder / "manifest.json"))))
    assert _json(folder / "expected.json") == truth


@pytest.mark.parametrize("folder", CASES)
def test_every_call_is_found_once_per_rank_and_step(
    measured: Callable[[Path], Run], folder: Path
) -> None:
    truth = _json(folder / "expected.json")
    trace = measured(folder).measures
    ranks_of = {
        (row.rank, row.group): [int(rank) for rank in row.ranks.split(",")]
        for row in trace.groups.itertuples()
        if isinstance(row.ranks, str)
    }
    calls = trace.collectives.sort_values("launch_ns", kind="stable")  # one kernel for several
    assert set(calls["step"].dropna()) == set(truth["steps"])
    assert calls["step"].notna().all()
    for rank, wanted in truth["calls_per_step"].items():
        for step in truth["steps"]:
            found = calls[(calls["rank"] == int(rank)) & (calls["step"] == step)]
            rows = [_plain(row) for row in found.to_dict("records")]
            assert [row["op"] for row in rows] == [call["op"] for call in wanted]
            for row, call in zip(rows, wanted, strict=True):
                _compare(row, call, ranks_of.get((int(rank), row["group"])))


def _plain(row: Json) -> Json:
    return {key: None if pd.isna(value) else value for key, value in row.items()}


def _compare(row: Json, call: Json, ranks: list[int] | None) -> None:
    for key in ("dtype", "size_bytes", "in_bytes", "out_bytes", "root", "peer"):
        assert row[key] == call[key], key
    # gloo's send and recv do not tell their group where there are several.
    if row["group"] is not None or call["op"] not in ("send", "recv"):
        assert ranks == call["group"]


def test_bandwidth_of_the_reconstructed_copies(measured: Callable[[Path], Run]) -> None:
    folder = TRACES / "p2p_copies" / "hypercube-reconstructed"
    trace = measured(folder).measures
    labels = trace.steps[trace.steps["label"].notna()]
    for pair in _json(folder / "expected.json")["pairs"]:
        copies = trace.copies[trace.copies["destination"] == pair["destination"]]
        assert (copies["kind"] == pair["kind"]).all()
        assert (copies["source"] == pair["source"]).all()
        assert len(copies) == pair["count"]
        assert copies["size_bytes"].sum() == pair["bytes"]
        for label in labels.itertuples():
            end_ns = label.start_ns + label.duration_ns
            within = copies[copies["launch_ns"].between(label.start_ns, end_ns)]
            if len(within):
                kind = "together" if label.label == "together" else "alone"
                gb_s = within["size_bytes"].sum() / within["duration_ns"].sum()
                assert gb_s == pytest.approx(pair["gb_s"][kind], rel=1e-3)


def test_bandwidth_of_the_reconstructed_copies_between_host_and_gpu(
    measured: Callable[[Path], Run],
) -> None:
    folder = TRACES / "host_device_copies" / "puzzles-reconstructed"
    truth, run = _json(folder / "expected.json"), measured(folder)
    assert not run.notes
    labels = run.steps[run.steps["label"].notna()].set_index("label")
    for its in truth["copies"]:
        begin_ns = labels.loc[its["label"], "start_ns"]
        end_ns = begin_ns + labels.loc[its["label"], "duration_ns"]
        copies = run.copies[run.copies["launch_ns"].between(begin_ns, end_ns)]
        copies = copies[(copies["kind"] == its["kind"]) & (copies["memory"] == its["memory"])]
        assert (len(copies), copies["size_bytes"].sum()) == (its["count"], its["bytes"])
        gb_s = copies["size_bytes"].sum() / copies["duration_ns"].sum()
        assert gb_s == pytest.approx(its["gb_s"], rel=1e-3)
    assert labels.loc["one by one", "duration_ns"] == truth["one_by_one"]["duration_ns"]


def test_copies_of_a_gpu_are_told_from_each_other(measured: Callable[[Path], Run]) -> None:
    folder = TRACES / "host_device_copies" / "nccl-1"
    run, median = measured(folder), {}
    for its in _json(folder / "expected.json")["copies"]:
        copies = run.copies[(run.copies["kind"] == its["kind"])]
        copies = copies[copies["memory"] == its["memory"]]
        assert (len(copies), copies["size_bytes"].sum()) == (its["count"], its["bytes"])
        median[its["kind"], its["memory"]] = copies["duration_ns"].median()
    for kind in ("HtoD", "DtoH"):
        assert median[kind, "pageable"] > 2 * median[kind, "pinned"]


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_program_shows_its_fault_only_before_the_fix(
    measured: Callable[[Path], Run], side: str
) -> None:
    folder = TRACES / "slow_ddp" / side
    found = measured(folder).diagnose().findings
    wanted = _json(folder / "expected.json")["first_finding"]
    if wanted is None:
        assert not [finding for finding in found if finding.cause == "checkpoint"]
    else:
        first = {"rule": found[0].rule, "ranks": [*found[0].ranks], "cause": found[0].cause}
        assert first == wanted


@pytest.mark.parametrize("name", ["gathered_logits", "empty_cache"])
def test_a_fault_on_gpus_costs_about_what_the_program_gains_without(
    name: str, measured: Callable[[Path], Run]
) -> None:
    """As recorded its hosts may be too slow for that to matter; unrecorded they are not."""
    folder = TRACES / name / "nccl-2"
    expected, found = _json(folder / "expected.json"), measured(folder).diagnose().findings
    first = {"rule": found[0].rule, "ranks": [*found[0].ranks], "cause": found[0].cause}
    assert first == expected["first_finding"]
    gained = expected["step_ms"] - expected["step_ms_without"]
    assert found[0].cost_ns / 1e6 / expected["steps"] == pytest.approx(gained, rel=0.5)


def test_a_rank_that_kineto_guesses_is_not_believed(measured: Callable[[Path], Run]) -> None:
    folder = TRACES / "kmeans" / "nccl-2"
    expected = _json(folder / "expected.json")
    for rank in expected["ranks"]:
        trace = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
        assert trace["distributedInfo"]["rank"] == expected["guessed_rank"]
    run = measured(folder)
    assert sorted(run.ranks["rank"]) == expected["ranks"]
    assert not [its for its in run.diagnose().findings if its.confidence == "high"]


def test_recordings_are_small_and_name_no_machine() -> None:
    # Only these are ours: a recording of one's own may lie beside them. NCCL's hold each launch.
    shipped = [expected.parent for expected in TRACES.rglob("expected.json")]
    files = [file for folder in shipped for file in folder.iterdir()]
    assert sum(path.stat().st_size for path in files) < 6_500_000
    for path in files:
        text = (
            gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        ).decode()
        assert not [where for where in ("/home/", "/root", "/tmp", "/work") if where in text], path
        if path.suffix == ".gz":
            assert json.loads(text)["host_name"] == "host"
