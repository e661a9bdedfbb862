"""Training on CPUs, written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

Work = Callable[[int, int], float]
DISPATCH_US = 50


@pytest.fixture(scope="session")
def training() -> Callable[..., Measures]:
    """Ranks that work, and then reduce a tensor that all wait for: ``_training``."""
    return _training


def _training(
    work_us: Work,
    *,
    ranks: int = 2,
    steps: int = 6,
    sleep_us: Work = lambda rank, step: 0,
    transfer_us: Work = lambda rank, step: 1_000,
    hosts: tuple[str, ...] = ("host",),
    cores: int | None = None,
    op: str = "all_reduce",
    tail_us: float = 10,
    calling: Callable[[int], bool] = lambda step: True,
    also_us: Work = lambda rank, step: 0,
    label: str | None = None,
) -> Measures:
    """In each step a rank sleeps, runs operators and calls; all are done at the same time.

    It runs ``also`` so long, if at all, under a label if there is one, and calls in some steps
    only, if not in all.
    """
    manifest = {"cpu": {"count": cores}} if cores else None
    run = Tiny(ranks, backend="gloo", hosts=hosts, manifest=manifest)
    at = 0.0
    for step in range(steps):
        called = [
            at + sleep_us(rank, step) + work_us(rank, step) + also_us(rank, step)
            for rank in range(ranks)
        ]
        end = max(called) + DISPATCH_US + transfer_us(0, step)
        for rank, call in enumerate(called):
            began, asleep, also = call + DISPATCH_US, sleep_us(rank, step), also_us(rank, step)
            if asleep:
                run.gap(rank, at, asleep)
            run.op(rank, at + asleep, work_us(rank, step))
            if also:
                run.op(rank, call - also, also, name="aten::sort")
            run.step(rank, step, at, end + tail_us - at)
            if also and label:
                run.step(rank, step, call - also, also, label=label)
            if not calling(step):
                continue
            run.collective(
                rank,
                op,
                began,
                end - began,
                size=1 << (20 + step % 3),
                asynchronous=0,
                thread=1,
                stream=50,
                launch_ns=BASE_NS + round(call * 1e3),
            )
            run.gap(rank, call, end - call)
        at = end + tail_us
    return run.trace()
