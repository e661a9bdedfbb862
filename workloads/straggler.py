"""What does one slow rank cost all the others?

Every rank computes and then reduces; one computes longer by a set time. Look at who waits:
the all_reduce looks slow on every rank but the one that is to blame.
"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist


def setup(
    ctx,
    elements: int = 1_000_000,
    dtype: torch.dtype = torch.float32,
    delay_ms: float = 20.0,
    slow_rank: int = 1,
) -> SimpleNamespace:
    """Allocate what is reduced and what is multiplied."""
    ctx.require(0 <= slow_rank < ctx.world_size, f"there is no rank {slow_rank} to be slow")
    tensor = torch.empty(elements, dtype=dtype, device=ctx.device)
    matrix = torch.ones(256, 256, dtype=dtype, device=ctx.device)
    state = SimpleNamespace(ctx=ctx, tensor=tensor, matrix=matrix, out=matrix.clone())
    state.delay_s = delay_ms / 1e3 if ctx.rank == slow_rank else 0.0
    return state


def step(state: SimpleNamespace) -> None:
    """Multiply once, and on the slow rank until the delay is over; then sum rank + 1."""
    state.tensor.fill_(state.ctx.rank + 1)
    with state.ctx.label("compute"):
        end = time.monotonic() + state.delay_s
        while True:
            torch.mm(state.matrix, state.matrix, out=state.out)
            state.out[0, 0].item()  # the host waits for the device, to know the time
            if time.monotonic() >= end:
                break
    with state.ctx.label("all_reduce"):
        dist.all_reduce(state.tensor)


def check(state: SimpleNamespace) -> None:
    """The sum is right on every rank, 10 for four, and so is the product."""
    n = state.ctx.world_size
    assert torch.all(state.tensor == n * (n + 1) // 2)
    assert torch.all(state.out == 256)
