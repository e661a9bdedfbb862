"""Kernels that a ROCm trace lets end long after the next one of their stream began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

ROCM = {"hip_runtime_version": 60443483}


def test_a_kernel_ends_where_the_next_one_begins(read: Callable[..., Any], events: Any) -> None:
    late = events.kernel("fmha_bwd", 100, 1_600_000, 1)
    comm = events.kernel("rcclGenericKernel", 200, 3_000_000, 2)
    last = events.kernel("gemm", 300, 50, 3)
    elsewhere = events.kernel("gemm", 150, 2_000_000, 4, stream=8)
    found = read([last, comm, elsewhere, late], **ROCM)
    duration = {(k["name"], k["stream"]): k["duration_ns"] for k in found.kernels}
    assert duration == {
        ("fmha_bwd", 7): 100_000,
        ("rcclGenericKernel", 7): 100_000,
        ("gemm", 7): 50_000,
        ("gemm", 8): 2_000_000_000,
    }
    assert [row["duration_ns"] for row in found.collectives] == [100_000]
    assert found.notes["overrunning-kernels"].startswith("2 kernels end")
    assert "4,599.8 ms in all" in found.notes["overrunning-kernels"]


@pytest.mark.parametrize(
    ("metadata", "next_correlation", "overrun_us"),
    [({}, 2, 1_600_000), (ROCM, 1, 1_600_000), (ROCM, 2, 900)],
    ids=["CUDA", "one graph", "not far"],
)
def test_other_overlaps_stay(
    read: Callable[..., Any],
    events: Any,
    metadata: dict[str, Any],
    next_correlation: int,
    overrun_us: int,
) -> None:
    first = events.kernel("a", 100, 100 + overrun_us, 1)
    second = events.kernel("b", 200, 50, next_correlation)
    found = read([first, second], **metadata)
    assert found.kernels[0]["duration_ns"] == (100 + overrun_us) * 1000
    assert "overrunning-kernels" not in found.notes
