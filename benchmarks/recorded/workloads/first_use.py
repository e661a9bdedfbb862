"""What does the first use of a group cost, and does a warm-up take it out of the steps?

gloo connects at the first use, as NCCL does, and not when the group is made, if told so.
"""

import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work

WARMUP = 0


def setup(ctx, warm: bool = False, message: bool = False, elements: int = 1000) -> SimpleNamespace:
    """Make a group, and use it once if it is to be warm."""
    os.environ["TORCH_GLOO_LAZY_INIT"] = "1"
    group = dist.new_group()
    state = SimpleNamespace(ctx=ctx, group=group, tensor=torch.ones(elements), message=message)
    if warm:
        communicate(state)
    return state


def communicate(state: SimpleNamespace) -> None:
    """Reduce, or send from rank 0 to rank 1."""
    if not state.message:
        dist.all_reduce(state.tensor, dist.ReduceOp.MAX, group=state.group)
    elif state.ctx.rank == 0:
        dist.send(state.tensor, dst=1, group=state.group)
    elif state.ctx.rank == 1:
        dist.recv(state.tensor, src=0, group=state.group)


def step(state: SimpleNamespace) -> None:
    """Compute and communicate."""
    work(6)
    communicate(state)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
