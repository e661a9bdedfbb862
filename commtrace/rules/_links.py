"""Tiny traces of GPUs that are all linked alike, for the rules about links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.rules._tiny import Tiny

if TYPE_CHECKING:
    from commtrace.trace import Trace

__all__ = ["on_links", "one_machine"]


def one_machine(
    gpus: int, code: str = "NV18", gpu: str = "NVIDIA H100 80GB HBM3"
) -> dict[str, Any]:
    """A manifest that tells the links of a machine."""
    links = [["X" if i == j else code for j in range(gpus)] for i in range(gpus)]
    return {
        "devices": [{"index": str(i), "name": gpu} for i in range(gpus)],
        "topology": {"names": [f"GPU{i}" for i in range(gpus)], "links": links},
    }


def on_links(
    duration_us: float, *, op: str = "all_reduce", size: int = 256_000_000, count: int = 12
) -> Trace:
    """Eight H100 that run one operation again and again, each for as long."""
    run = Tiny(8, manifest=one_machine(8))
    for i in range(count):
        for rank in range(8):
            run.collective(rank, op, i * 4000 + rank, duration_us - rank, size=size)
    return run.trace()
