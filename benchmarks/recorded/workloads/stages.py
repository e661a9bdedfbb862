"""What does a pipeline with few micro-batches cost against one with many?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx, micro_batches: int = 2, work_ms: float = 32.0, elements: int = 10_000
) -> SimpleNamespace:
    """Each rank is a stage; whatever their number, the micro-batches of a step are as much."""
    ms, tensor = work_ms / micro_batches, torch.ones(elements)
    return SimpleNamespace(ctx=ctx, micro_batches=micro_batches, ms=ms, tensor=tensor)


def step(state: SimpleNamespace) -> None:
    """Pass all micro-batches forward, and begin together again."""
    rank, n = state.ctx.rank, state.ctx.world_size
    for _ in range(state.micro_batches):
        if rank > 0:
            dist.recv(state.tensor, src=rank - 1)
        work(state.ms)
        if rank < n - 1:
            dist.send(state.tensor, dst=rank + 1)
    dist.barrier()


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
