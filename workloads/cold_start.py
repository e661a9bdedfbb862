"""What does the first operation of a process group cost beyond those that follow?

Its ranks have to find and connect each other, for send and recv once more. Look at first
against second: a benchmark without warm-up measures this.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ITERATIONS = 3
WARMUP = 1
ANSWER = ("duration_ns_p50", "second_all_reduce", "first_all_reduce", "new_group")


def setup(ctx, elements: int = 100_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate; the groups are made in each step, and live until the end of the recording."""
    ctx.require(ctx.world_size >= 2, "cold_start needs at least 2 ranks")
    tensors = {
        label: torch.empty(elements, dtype=dtype, device=ctx.device)
        for label in ("first_all_reduce", "second_all_reduce", "first_recv", "second_recv")
    }
    return SimpleNamespace(ctx=ctx, tensors=tensors)


def step(state: SimpleNamespace) -> None:
    """Make a group, sum rank + 1 on it twice, and send from rank 0 to rank 1 twice."""
    rank = state.ctx.rank
    with state.ctx.label("new_group"):
        group = dist.new_group()
    for label, tensor in state.tensors.items():
        tensor.fill_(rank + 1)
        with state.ctx.label(label):
            if label.endswith("all_reduce"):
                dist.all_reduce(tensor, group=group)
            elif rank == 0:
                dist.send(tensor, dst=1, group=group)
            elif rank == 1:
                dist.recv(tensor, src=0, group=group)


def check(state: SimpleNamespace) -> None:
    """Sums on every rank, 10 for four; rank 1 received what rank 0 has."""
    n = state.ctx.world_size
    for label, tensor in state.tensors.items():
        if label.endswith("all_reduce"):
            assert torch.all(tensor == n * (n + 1) // 2)
        elif state.ctx.rank == 1:
            assert torch.all(tensor == 1)
