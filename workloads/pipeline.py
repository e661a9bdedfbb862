"""How long does a stage of a pipeline sit idle, and do more micro-batches help?

Each rank is a stage; all micro-batches go forward, then back. Look at the waits in recv: of
p stages with m micro-batches at least (p - 1) / (m + p - 1) of the time is idle.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist


def setup(
    ctx, width: int = 512, dtype: torch.dtype = torch.float32, micro_batches: int = 8
) -> SimpleNamespace:
    """Allocate a stage, which doubles what it gets, and width x width per micro-batch."""
    ctx.require(ctx.world_size >= 2, "pipeline needs at least 2 ranks")
    size = (micro_batches, width, width)
    x, y, dy, dx = (torch.zeros(size, dtype=dtype, device=ctx.device) for _ in range(4))
    x[:] = torch.arange(1, micro_batches + 1, device=ctx.device).view(-1, 1, 1)
    weight = 2 * torch.eye(width, dtype=dtype, device=ctx.device)
    return SimpleNamespace(ctx=ctx, weight=weight, x=x, y=y, dy=dy.fill_(1), dx=dx)


def run(state: SimpleNamespace, inputs, outputs, source: int, target: int) -> None:
    """Receive each micro-batch, work on it and pass it on. The ends have one neighbour only."""
    for given, made in zip(inputs, outputs, strict=True):
        if 0 <= source < state.ctx.world_size:
            dist.recv(given.zero_(), src=source)
        torch.mm(given, state.weight, out=made)
        if 0 <= target < state.ctx.world_size:
            dist.send(made, dst=target)


def step(state: SimpleNamespace) -> None:
    """Send 1, 2, … forward from the first stage, and ones back from the last."""
    with state.ctx.label("forward"):
        run(state, state.x, state.y, state.ctx.rank - 1, state.ctx.rank + 1)
    with state.ctx.label("backward"):
        run(state, state.dy, state.dx, state.ctx.rank + 1, state.ctx.rank - 1)


def check(state: SimpleNamespace) -> None:
    """Each stage has doubled what came before it, in both directions."""
    n, rank = state.ctx.world_size, state.ctx.rank
    assert all(torch.all(y == (m + 1) * 2 ** (rank + 1)) for m, y in enumerate(state.y))
    assert torch.all(state.dx == 2 ** (n - rank))
