"""A training loop on CPUs, written by hand: ranks work, call an operation, and wait for it."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

__all__ = ["gloo_loop"]

Work = Callable[[int, int], float]


def gloo_loop(
    *operations: tuple[str, Work], ranks: int, steps: int, size: int | None = None
) -> Measures:
    """In each step such operations, and how long a rank works in a step before each, in µs.

    Rank 0 is their root, and each takes 0.5 ms when all have called it.
    """
    run, at = Tiny(ranks, backend="gloo"), 0.0
    for step in range(steps):
        begin = at
        for op, work_us in operations:
            called = [at + work_us(rank, step) for rank in range(ranks)]
            end = max(called) + 500
            for rank, call in enumerate(called):
                run.op(rank, at, call - at)
                run.collective(
                    rank,
                    op,
                    call + 50,
                    end - call - 50,
                    size=size,
                    step=step,
                    asynchronous=0,
                    thread=1,
                    stream=50,
                    launch_ns=BASE_NS + round(call * 1e3),
                    root=None if op.startswith("all_") else 0,
                )
                run.gap(rank, call, end - call)
            at = end
        for rank in range(ranks):
            run.step(rank, step, begin, at - begin)
    return run.trace()
