"""What does it cost to wait for an all_reduce before the work that could hide it?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx, wait: str = "behind", elements: int = 4_000_000, work_ms: float = 20.0
) -> SimpleNamespace:
    """``wait`` is behind the work, at_once, or not at all, where the call is synchronous."""
    ctx.require(wait in ("behind", "at_once", "synchronous"), f"no way to wait {wait}")
    return SimpleNamespace(wait=wait, tensor=torch.ones(elements), work_ms=work_ms)


def step(state: SimpleNamespace) -> None:
    """Reduce, and do work that does not need the result."""
    begun = state.wait != "synchronous"
    handle = dist.all_reduce(state.tensor, dist.ReduceOp.MAX, async_op=begun)
    if state.wait == "at_once":
        handle.wait()
    work(state.work_ms)
    if state.wait == "behind":
        handle.wait()


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
