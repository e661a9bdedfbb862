"""Slimming keeps what is read and the layout, and drops the rest."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import reconstruct_copies
import reconstruct_p2p
from slim import slim, slim_folder, write

Json = dict[str, Any]


def _event(category: str, name: str, start: float, duration: float, **args: Any) -> Json:
    times = {"ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, **times, "args": args}


@pytest.fixture
def trace() -> Json:
    shapes = {"Input Dims": [[4]], "Input Strides": [[1]], "External id": 7}
    return {
        "host_name": "alices-laptop",
        "commtrace": {"host": "alices-laptop", "rank": 0},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "x"}},
            {"ph": "M", "name": "thread_sort_index", "pid": 1, "tid": 1, "ts": 0, "args": {}},
            _event("user_annotation", "ProfilerStep#1", 0, 100),
            _event("python_function", "train.py(3): <module>", 0, 100),
            _event("cpu_op", "aten::linear", 1, 10.125, **shapes),
            _event("cpu_op", "aten::mm", 2, 3.001, **shapes),
            _event("cpu_op", "autograd", 20, 30, **shapes),
            _event("cpu_op", "c10d::allreduce_", 21, 5, **shapes),
            _event("user_annotation", "gloo:all_reduce", 22, 9, **shapes),
            {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 100, "s": "g"},
        ],
        "traceName": "/home/alice/rank0.json.raw",
    }


def test_keeps_top_level_operators_and_communication(trace: Json) -> None:
    small = slim(trace, "rank0.json.gz")
    events = {event["name"]: event for event in small["traceEvents"]}
    assert list(events) == [
        *("thread_name", "ProfilerStep#1", "aten::linear", "autograd"),
        *("c10d::allreduce_", "gloo:all_reduce"),
    ]
    assert events["c10d::allreduce_"]["args"] == {"Input Dims": [[4]]}
    assert events["aten::linear"]["args"] == {}
    assert events["aten::linear"]["dur"] == 10.125
    assert "alice" not in json.dumps(small)
    assert slim(small, "rank0.json.gz") == small


def test_layout_is_kinetos_and_bytes_are_stable(trace: Json, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    (tmp_path / "manifest.json").write_text('{"hosts": ["alices-laptop"]}', "utf-8")
    slim_folder(tmp_path)
    first = path.read_bytes()
    slim_folder(tmp_path)
    assert path.read_bytes() == first
    text = gzip.decompress(first).decode()
    small = json.loads(text)
    assert small == slim(trace, path.name)
    assert text.splitlines().count("  },") == len(small["traceEvents"]) - 1
    assert "alice" not in (tmp_path / "manifest.json").read_text("utf-8")


@pytest.mark.parametrize("script", [reconstruct_p2p, reconstruct_copies])
def test_reconstruction_is_what_its_script_writes(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    write(path, script.trace())
    # Not the compressed bytes: builds of zlib differ.
    kept = (script.FOLDER / path.name).read_bytes()
    assert gzip.decompress(path.read_bytes()) == gzip.decompress(kept)
    for name, its in (("manifest", script.manifest()), ("expected", script.expected())):
        assert json.loads((script.FOLDER / f"{name}.json").read_text("utf-8")) == its
    assert script.manifest()["reconstruction"] is True
