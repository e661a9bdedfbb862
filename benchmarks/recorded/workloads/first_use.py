"""What does the first use of a group cost, and does a warm-up take it out of the steps?

gloo connects at the first use, as NCCL does, and not when the group is made, if told so.
"""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work

WARMUP = 0


def setup(ctx, warm: bool = False, elements: int = 1000) -> SimpleNamespace:
    """Make a group, and use it once if it is to be warm."""
    ctx.require(ctx.world_size >= 2, "first_use needs at least 2 ranks")
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    group = dist.new_group()
    if warm:
        dist.all_reduce(torch.ones(elements), group=group)
    return SimpleNamespace(group=group, tensor=torch.ones(elements))


def step(state: SimpleNamespace) -> None:
    """Compute and reduce."""
    work(3)
    dist.all_reduce(state.tensor, dist.ReduceOp.MAX, group=state.group)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
