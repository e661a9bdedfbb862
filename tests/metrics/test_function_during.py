"""Which function of the program a host is in, where the profiler recorded stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.metrics.rank.host_meanwhile import function_during
from commtrace.run import load


def _span(cat: str, name: str, start: float, took: float, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": took,
        "args": args,
    }


def _during(folder: Path, functions: list[tuple[str, float, float]], *when: float) -> str | None:
    """The function in which the host is from and to some times, of these with their times."""
    spans = [_span("python_function", *its) for its in functions]
    kernel = _span("kernel", "gemm", 5, 2, device=0, stream=7, correlation=1)
    file = folder / "rank0.json"
    file.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": [*spans, kernel]}))
    begin, end = (np.array([1000 * at], dtype=np.int64) for at in when)
    return function_during(load(file).measures, 0, (begin, end))


PROGRAM = [
    ("<built-in method exec of module object>", 0, 100),
    ("train.py(57): main", 1, 99),
    ("train.py(20): step", 2, 40),
    ("train.py(80): report", 50, 45),
    ("wandb/sdk/histogram.py(60): __init__", 51, 43),
    ("torch/_tensor.py(900): tolist", 52, 2),
]


def test_it_is_the_innermost_that_holds_most_of_the_time(tmp_path: Path) -> None:
    assert _during(tmp_path, PROGRAM, 50, 90) == "wandb/sdk/histogram.py:60 in __init__"
    assert _during(tmp_path, PROGRAM, 10, 90) == "train.py:57 in main"


def test_what_it_calls_of_torch_is_named_behind_it(tmp_path: Path) -> None:
    saves = [*PROGRAM[:2], ("torch/serialization.py(780): save", 10, 80)]
    said = "train.py:57 in main, by torch/serialization.py:780 in save"
    assert _during(tmp_path, saves, 20, 80) == said


def test_without_stacks_it_is_not_known(tmp_path: Path) -> None:
    assert _during(tmp_path, [], 20, 80) is None
