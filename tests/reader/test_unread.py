"""Events of categories unknown here are named, with their share of the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.reader import read


@pytest.mark.parametrize("category", ["tpu_op", None])
def test_unread_events_are_noted(tmp_path: Path, events: Any, category: str | None) -> None:
    file = tmp_path / "rank0.json"
    work = [events.op("aten::mm", 0, 100)]
    for start in (10, 20):  # they overlap: 40 us in all
        event = {"ph": "X", "name": "gemm", "pid": 0, "tid": 3, "ts": start, "dur": 30, "args": {}}
        work.append(event | ({"cat": category} if category else {}))
    file.write_text(json.dumps({"traceEvents": work}))
    [note] = [note for note in read([file]).notes if note.code == "unread-events"]
    assert note.message.startswith(
        f"2 events {f'of category {category}' if category else 'without a category'} are not read: "
        "0.04 ms, 40 % of the trace's time"
    )


def test_what_is_left_out_on_purpose_is_not_noted(tmp_path: Path, events: Any) -> None:
    file = tmp_path / "rank0.json"
    noise = events.op("main.py(1): main", 0, 50) | {"cat": "python_function"}
    file.write_text(json.dumps({"traceEvents": [noise, events.op("aten::mm", 0, 100)]}))
    assert "unread-events" not in {note.code for note in read([file]).notes}
