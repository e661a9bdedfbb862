"""Ranks on which torch's anomaly detection was left on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.metrics.rank.anomaly_checks import detects_anomalies
from commtrace.reader.json import mentions
from commtrace.reader.json.source import Source
from commtrace.run import load


def operator(name: str, at_us: float) -> dict[str, Any]:
    its = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at_us, "dur": 10.0}
    return {**its, "args": {"Input Dims": [[2, 2]]}}


def test_who_checks_gradients_for_nan(tmp_path: Path) -> None:
    for rank, checks in enumerate((["aten::isnan"], ["aten::isnan", "aten::_is_any_true"])):
        events = [operator(name, 100.0 * at) for at, name in enumerate(["aten::mm", *checks])]
        trace = {"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    run = load([tmp_path], cache=False).measures
    assert not detects_anomalies(run, 0)
    assert detects_anomalies(run, 1)


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_a_name_that_two_blocks_share(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b'{"traceEvents": [{"name": "aten::sum"}]}'
    blocks = [text[at : at + size] for at in range(0, len(text), size)]
    monkeypatch.setattr(Source, "__iter__", lambda _: iter(blocks))
    (tmp_path / "trace.json").write_bytes(text)
    assert mentions(tmp_path / "trace.json", "aten::sum")
    assert not mentions(tmp_path / "trace.json", "aten::su")
