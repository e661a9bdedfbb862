"""A trace that breaks off before its GPU events is no run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import commtrace
from commtrace.reports import content

GPU = {"deviceProperties": [{"id": 0, "name": "H200"}]}


def _cut(file: Path, events: list[Any], **metadata: Any) -> commtrace.Run:
    text = json.dumps({**metadata, "traceEvents": events})
    file.write_text(text.removesuffix("]}") + ', {"ph": "X", "ca')
    return commtrace.load(file, workers=1)


@pytest.mark.parametrize("launched", [True, False])
def test_it_is_said_and_nothing_is_computed(tmp_path: Path, events: Any, launched: bool) -> None:
    work = [events.op("aten::mm", 0, 100), *([events.launch(5, 1)] if launched else [])]
    run = _cut(tmp_path / "rank0.json", work, **({} if launched else GPU))
    assert "cut-before-gpu-events" in {note.code for note in run.notes}
    assert run.overlap().empty
    assert "ends before its GPU events" in content.headline(run.analysis())[2]


@pytest.mark.parametrize("metadata", [{}, GPU], ids=["no GPU", "gloo beside a GPU"])
def test_a_run_on_the_cpu_stays_one(tmp_path: Path, events: Any, metadata: dict[str, Any]) -> None:
    work = [events.op("aten::mm", 0, 100), events.note("gloo:all_reduce", 200, 50, 2)]
    run = _cut(tmp_path / "rank0.json", work, **metadata)
    assert "cut-before-gpu-events" not in {note.code for note in run.notes}
    assert run.overlap()["device"].tolist() == ["cpu"]
