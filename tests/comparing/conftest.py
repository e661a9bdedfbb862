"""Small runs to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from commtrace.run import Run
from commtrace.synthetic import BASE_NS, Tiny

Work = Sequence[Sequence[float]]
"""For each step what each rank does by itself, in µs."""


def gloo_run(
    work: Work,
    *,
    transfer: float = 1_000,
    ops: Sequence[str] = ("all_reduce",),
    size: int = 1 << 20,
    host: Work | None = None,
    name: str = "run",
    manifest: dict[str, Any] | None = None,
) -> Run:
    """Steps in which each rank computes, idles (``host``), and then runs joint operations."""
    tiny = Tiny(len(work[0]), backend="gloo", manifest=manifest)
    at = 0.0
    for step, computes in enumerate(work):
        idles = host[step] if host else [0.0] * len(computes)
        ready = [at + mine + idle for mine, idle in zip(computes, idles, strict=True)]
        last = max(ready)
        end = last + (transfer + 20) * len(ops)
        for rank, mine in enumerate(computes):
            tiny.op(rank, at, mine)
            if idles[rank]:
                tiny.gap(rank, at + mine, idles[rank])
            came = ready[rank]
            for number, op in enumerate(ops, 1):
                done = last + transfer * number + 20 * (number - 1)
                tiny.collective(
                    rank,
                    op,
                    came,
                    done - came,
                    size=size,
                    asynchronous=0,
                    thread=1,
                    launch_ns=BASE_NS + round(came * 1_000),
                )
                tiny.gap(rank, came, done - came)
                tiny.op(rank, done, 20)
                came = done + 20
            tiny.step(rank, step, at, end - at)
        at = end
    return Run(tiny.trace(), name)


@pytest.fixture
def make() -> Callable[..., Run]:
    return gloo_run
