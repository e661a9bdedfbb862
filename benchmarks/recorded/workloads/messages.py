"""What does it cost when the sender of a message, or its receiver, is late?"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx, late: str = "sender", delay_ms: float = 15.0, elements: int = 1_000_000
) -> SimpleNamespace:
    """Rank 0 sends to rank 1, more than a socket's buffers hold."""
    ctx.require(ctx.world_size == 2, "messages needs 2 ranks")
    mine = "sender" if ctx.rank == 0 else "receiver"
    tensor = torch.full((elements,), 1.0 - ctx.rank)
    return SimpleNamespace(ctx=ctx, tensor=tensor, delay_s=delay_ms / 1e3 if late == mine else 0.0)


def step(state: SimpleNamespace) -> None:
    """Compute, be late or not, and pass one message."""
    work(50)
    time.sleep(state.delay_s)
    if state.ctx.rank == 0:
        dist.send(state.tensor, dst=1)
    else:
        dist.recv(state.tensor, src=0)


def check(state: SimpleNamespace) -> None:
    """What was sent is everywhere."""
    assert torch.all(state.tensor == 1)
