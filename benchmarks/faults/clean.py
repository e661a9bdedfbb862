"""Runs in which nothing is wrong, of every kind."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.faults.case import Case
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import (
    all_to_all,
    copies,
    data_parallel,
    fully_sharded,
    gloo,
    pipeline,
    tensor_parallel,
)

__all__ = ["CLEAN"]


def _two_hosts(seed: int) -> Loop:
    """The second host's clock is milliseconds away."""
    loop = Loop(seed, ranks=4, hosts=("a", "b"))
    loop.clock_us = [0.0] * 2 + [loop.dice.uniform(-5000, 5000)] * 2
    return loop


_KINDS: dict[str, tuple[Callable[[int], Loop], Callable[[Loop], None]]] = {
    "data parallel": (Loop, data_parallel),
    "data parallel, two hosts": (_two_hosts, data_parallel),
    "pipeline": (lambda seed: Loop(seed, ranks=2), pipeline),
    "fully sharded": (Loop, fully_sharded),
    "all_to_all": (Loop, all_to_all),
    "tensor parallel": (lambda seed: Loop(seed, ranks=8 if seed % 8 < 2 else 4), tensor_parallel),
    "copies only": (lambda seed: Loop(seed, ranks=1), copies),
    "gloo": (lambda seed: Loop(seed, backend="gloo"), gloo),
}


def _clean(kind: str) -> Callable[[int], Case]:
    def run(seed: int) -> Case:
        job, workload = _KINDS[kind]
        loop = job(seed)
        workload(loop)
        return Case(loop.trace())

    return run


CLEAN = {kind: _clean(kind) for kind in _KINDS}
"""By kind: a seed's run."""
