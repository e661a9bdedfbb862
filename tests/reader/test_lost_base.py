"""A file that broke off before it said what its times count from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace import reader
from commtrace.arrays import NULL
from commtrace.errors import TraceError
from commtrace.reader.lost_base import with_lost_bases

QUARTER_S = 7_889_238  # of a year of 365.2425 days
BASES = 1_711_964_646_000_000_000, 1_767_189_312_000_000_000  # of two real traces
BASE_NS = BASES[1]


def event(category: str, name: str, at_us: float, **args: Any) -> dict[str, Any]:
    where = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
    return {"ph": "X", "cat": category, "name": name, "ts": at_us, "dur": 10, **where, "args": args}


def write(folder: Path, rank: int, at_us: float, *, whole: bool = True) -> None:
    """A launch and its kernel; what is not whole breaks off within a last event."""
    events = [
        event("cuda_runtime", "cudaLaunchKernel", at_us, correlation=1),
        event("kernel", "gemm", at_us + 20, device=0, stream=7, correlation=1),
        event("kernel", "lost", at_us + 40, device=0, stream=7, correlation=2),
    ]
    info = {"distributedInfo": {"rank": rank, "world_size": 2}}
    text = json.dumps({**info, "traceEvents": events, "baseTimeNanoseconds": BASE_NS})
    if not whole:
        text = text[: text.index('"lost"')]
    (folder / f"rank{rank}.json").write_text(text)


def test_kineto_counts_from_the_last_quarter() -> None:
    assert [base % (QUARTER_S * 10**9) for base in BASES] == [0, 0]


def test_what_broke_off_is_on_the_clock_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, 0, 1e9)
    write(tmp_path, 1, 1e9 + 300, whole=False)
    run = reader.read([tmp_path])
    kernels = run.rows("kernels")
    first = BASE_NS + 10**12
    assert kernels.ints("start_ns").tolist() == [first + 20_000, first + 40_000, first + 320_000]
    assert kernels.ints("launch_ns").tolist() == [first, NULL, first + 300_000]
    assert kernels.ints("duration_ns").tolist() == 3 * [10_000]
    assert [(note.code, note.rank) for note in run.notes][-1] == ("base-assumed", 1)


def test_what_does_not_fit_there_stays_apart(tmp_path: Path) -> None:
    """Its kernel is 20 minutes before the other's, from whichever quarter it counts."""
    write(tmp_path, 0, 2e9)
    write(tmp_path, 1, 8e8, whole=False)
    with pytest.raises(TraceError, match="2 recordings were given"):
        reader.read([tmp_path])


def test_of_files_that_all_broke_off_nothing_is_known(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, 1e9, whole=False)
    run = reader.read([tmp_path])
    assert "base-assumed" not in {note.code for note in run.notes}
    assert with_lost_bases([]) == []
