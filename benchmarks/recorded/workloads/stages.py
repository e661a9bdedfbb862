"""What does a pipeline with few micro-batches cost against one with many?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx, micro_batches: int = 2, work_ms: float = 48.0, elements: int = 1000
) -> SimpleNamespace:
    """Each rank is a stage; whatever their number, the micro-batches of a step are as much."""
    ms, tensor = work_ms / micro_batches, torch.ones(elements)
    return SimpleNamespace(ctx=ctx, micro_batches=micro_batches, ms=ms, tensor=tensor)


def step(state: SimpleNamespace) -> None:
    """Pass all micro-batches forward, then back."""
    rank, n = state.ctx.rank, state.ctx.world_size
    for source, target in ((rank - 1, rank + 1), (rank + 1, rank - 1)):
        for _ in range(state.micro_batches):
            if 0 <= source < n:
                dist.recv(state.tensor, src=source)
            work(state.ms)
            if 0 <= target < n:
                dist.send(state.tensor, dst=target)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
