"""All_to_alls of buffers with room for more rows than are put into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commtrace.diagnosis import Finding
from tests.written import event, found_on_two

STEPS, STEP_US, SENT_US, WIDTH, ROOM = 4, 10_000, 6_000, 64, 4_096


def step(number: int, name: str, dims: list[Any], sent: int) -> list[dict[str, Any]]:
    """Rows are put into a buffer, which is then exchanged."""
    at = number * STEP_US
    call = {"Collective name": "all_to_allv", "dtype": "Float", "Group size": 2}
    sizes = {"In msg nelems": sent, "Out msg nelems": sent}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    kernel = {"device": 0, "stream": 20, "correlation": number, **call, **sizes, **group}
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, STEP_US),
        event("cpu_op", name, at + 10, 50, **{"Input Dims": dims}),
        event("cuda_runtime", "cudaLaunchKernel", at + 100, 5, correlation=number),
        event("kernel", "ncclDevKernel_SendRecv(...)", at + 3_000, SENT_US, **kernel),
    ]


def found(folder: Path, name: str, dims: list[Any], sent: int = ROOM * WIDTH) -> list[Finding]:
    steps = (step(number, name, dims, sent) for number in range(STEPS))
    return found_on_two(folder, steps, "byte-inflation")


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::index_copy_", [[ROOM, WIDTH], [], [1024], [1024, WIDTH]]),
        ("aten::index_add_", [[ROOM, WIDTH], [], [1024], [1024, WIDTH], []]),
        ("aten::index_put_", [[8, ROOM // 8, WIDTH], [[1024], [1024]], [1024, WIDTH], []]),
    ],
)
def test_a_buffer_that_rows_fill_to_a_quarter(tmp_path: Path, name: str, dims: list[Any]) -> None:
    (finding,) = found(tmp_path, name, dims)
    assert "4 all_to_alls carry buffers of a fixed size, of which rows fill 25%" in finding.summary
    assert finding.cost_ns == pytest.approx(STEPS * SENT_US * 1e3 * 0.75, rel=0.01)


@pytest.mark.parametrize(
    ("dims", "sent"),
    [
        ([[ROOM, WIDTH], [], [3000], [3000, WIDTH]], ROOM * WIDTH),  # nearly full
        ([[ROOM, WIDTH], [], [1024], [1024, WIDTH]], 1024 * WIDTH),  # the rows alone are sent
        ([[ROOM, WIDTH], [], [1024], []], ROOM * WIDTH),  # a number is put there
        ([[], [], [1024], [1024, WIDTH]], ROOM * WIDTH),
        ([], ROOM * WIDTH),
        (7, ROOM * WIDTH),
    ],
)
def test_what_is_full_or_sent_otherwise_or_no_rows(tmp_path: Path, dims: Any, sent: int) -> None:
    assert not found(tmp_path, "aten::index_copy_", dims, sent)
