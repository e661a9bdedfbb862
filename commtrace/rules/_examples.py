"""Tiny runs that are one rule's ``bad()`` and another's ``good()``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commtrace.synthetic import BASE_NS, Tiny

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["late_rank", "message", "rooted"]

_BYTES = 1 << 26


def late_rank(stall_us: float) -> Measures:
    """Rank 1's host enqueues so much late; or, if it does not, its device computes 4 ms longer."""
    run = Tiny(ranks=2)
    for step in range(12):
        start = step * 10_000
        for rank in (0, 1):
            run.step(rank, step, start, 10_000)
            stall = stall_us if rank else 0
            time = 5000 if rank and not stall_us else 1000
            run.kernel(rank, start + stall + 30, time)
            run.collective(
                rank,
                "all_reduce",
                start + stall + 40 + time,
                7960 - stall - time,
                size=_BYTES,
                launch_ns=BASE_NS + round(1e3 * (start + stall + 35)),
            )
    return run.trace()


def rooted(op: str, arrivals_us: Sequence[float]) -> Measures:
    """Twelve operations of rank 0, each of which the ranks enter at these times."""
    run = Tiny(ranks=len(arrivals_us))
    for i in range(12):
        for rank, arrival in enumerate(arrivals_us):
            start = i * 10_000 + arrival
            run.collective(rank, op, start, 6000 - arrival, size=_BYTES, root=0)
    return run.trace()


def message(send_at_us: float, recv_at_us: float) -> Measures:
    """Twelve messages from rank 0 to rank 1, each sent and received at these times."""
    run = Tiny(ranks=2)
    for start in range(0, 120_000, 10_000):
        run.collective(0, "send", start + send_at_us, 6000 - send_at_us, size=_BYTES, peer=1)
        run.collective(1, "recv", start + recv_at_us, 6000 - recv_at_us, size=_BYTES, peer=0)
    return run.trace()
