"""What do many small all_reduces cost that could have been one?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(ctx, joined: bool = False, count: int = 40, elements: int = 2000) -> SimpleNamespace:
    """Allocate a few large tensors, and many small ones or one that holds them all."""
    ctx.require(ctx.world_size >= 2, "small needs at least 2 ranks")
    large = [torch.ones(size) for size in (250_000, 1_000_000, 4_000_000)]
    small = [torch.ones(count * elements)] if joined else [torch.ones(elements)] * count
    return SimpleNamespace(tensors=large + small)


def step(state: SimpleNamespace) -> None:
    """Compute, and reduce everything."""
    work(1)
    for tensor in state.tensors:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert all(torch.all(tensor == 1) for tensor in state.tensors)
