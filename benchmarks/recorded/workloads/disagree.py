"""What happens when one rank calls the operations in another order, or with another type?

The order ends in a timeout, after which the group is of no use: each step makes a new one.
"""

import contextlib
from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work

WARMUP = 0
ITERATIONS = 2


def setup(ctx, fault: str = "order", odd_rank: int = 1, elements: int = 1000) -> SimpleNamespace:
    """``fault`` is order, dtype or nothing."""
    ctx.require(fault in ("order", "dtype", "nothing"), f"no fault {fault}")
    odd = fault if ctx.rank == odd_rank else "nothing"
    other = torch.ones(elements, dtype=torch.int32 if odd == "dtype" else torch.float32)
    return SimpleNamespace(odd=odd, tensors=(torch.ones(elements), other))


def step(state: SimpleNamespace) -> None:
    """Reduce one tensor and broadcast the other, in a group that gives up after half a second."""
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    first, second = state.tensors
    calls = [
        lambda: dist.all_reduce(first, dist.ReduceOp.MAX, group=group),
        lambda: dist.all_reduce(second, dist.ReduceOp.MAX, group=group),
        lambda: dist.broadcast(first, 0, group=group),
    ]
    for call in reversed(calls) if state.odd == "order" else calls:
        with contextlib.suppress(RuntimeError):
            call()
    work(20)
    dist.barrier()


def check(state: SimpleNamespace) -> None:
    """Nothing is promised where the ranks disagree."""
