"""What does a rank cost that comes late to every all_reduce?

By a stall of its host or by more compute; ``slow_rank=-1`` is each in turn, -2 everybody, by
an equal part of the delay. Each rank prints when it calls.
"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx,
    delay_ms: float = 6.0,
    slow_rank: int = 1,
    stalls: bool = True,
    work_ms: float = 16.0,
    elements: int = 1000,
) -> SimpleNamespace:
    """Allocate a small tensor, so that nothing but the lateness costs time."""
    tensor = torch.ones(elements)
    state = SimpleNamespace(ctx=ctx, slow_rank=slow_rank, stalls=stalls, tensor=tensor, steps=0)
    state.work_ms, state.delay_ms = work_ms, delay_ms
    return state


def step(state: SimpleNamespace) -> None:
    """Compute, be late or not, and reduce."""
    rank, n = state.ctx.rank, state.ctx.world_size
    late = {-1: float(state.steps % n == rank), -2: 1 / n}
    delay_ms = state.delay_ms * late.get(state.slow_rank, float(state.slow_rank == rank))
    state.steps += 1
    if state.work_ms:
        work(state.work_ms)
    else:
        dist.barrier()
    if delay_ms:
        time.sleep(delay_ms / 1e3) if state.stalls else work(delay_ms)
    print("calls", time.time_ns(), flush=True)
    dist.all_reduce(state.tensor)


def check(state: SimpleNamespace) -> None:
    """Everybody has reduced."""
    assert torch.all(state.tensor >= 1)
