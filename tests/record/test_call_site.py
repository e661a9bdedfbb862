"""Which line of a program called an operation, by the stack that the flight recorder noted."""

from __future__ import annotations

import sysconfig
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from commtrace.record.call_site import call_site

LIBRARIES = sysconfig.get_paths()["purelib"]
TORCH = f"{Path(torch.__file__).parent}/distributed/distributed_c10d.py"


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": file, "line": line, "name": name}


SEND = frame(TORCH, 3245, "all_reduce")
MAIN = frame(f"{Path.cwd()}/examples/train.py", 57, "main")
MODULE = frame(f"{Path.cwd()}/examples/train.py", 80, "<module>")
METRIC = frame(f"{LIBRARIES}/torchmetrics/utilities/distributed.py", 128, "gather_all_tensors")
GATHER = "torchmetrics/utilities/distributed.py:128 in gather_all_tensors"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([SEND, MAIN, MODULE], "examples/train.py:57 in main"),
        ([SEND, MODULE], "examples/train.py:80"),
        (
            [SEND, METRIC, SEND, MAIN, MODULE],
            f"examples/train.py:57 in main, by {GATHER}",
        ),
        ([SEND, METRIC], GATHER),
        ([SEND, frame("/elsewhere/train.py", 3, "step")], "train.py:3 in step"),
        ([SEND, frame("<frozen runpy>", 88, "_run_code")], None),
        ([SEND, frame(threading.__file__, 1, "run")], None),
        ([], None),
    ],
)
def test_the_programs_own_line_and_the_librarys(frames: list[Any], said: str | None) -> None:
    assert call_site(frames) == said
