"""What does it cost to collect every rank's tensor on every rank, and which API is faster?

The list API may copy through one flat buffer, the tensor API gathers in place. Look at the
copies beside the communication: the bytes on the wire are the same.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

# Its name since torch 2.13; before, it was all_gather_into_tensor.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

ANSWER = ("duration_ns_p50", "list", "tensor")


def setup(ctx, elements: int = 250_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate for all ranks, and for the first and the last alone."""
    world, two = dist.group.WORLD, dist.new_group(sorted({0, ctx.world_size - 1}))
    mine = torch.full((elements,), ctx.rank + 1, dtype=dtype, device=ctx.device)
    cases = [
        (label, group, mine.new_empty(dist.get_world_size(group), elements))
        for label, group in (("list", world), ("tensor", world), ("subgroup", two))
        if dist.get_rank(group) >= 0
    ]
    return SimpleNamespace(ctx=ctx, mine=mine, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Gather rank + 1 through the list API, through the tensor API, and within the subgroup."""
    for label, group, gathered in state.cases:
        gathered.zero_()
        with state.ctx.label(label):
            if label == "list":
                dist.all_gather(list(gathered), state.mine, group=group)
            else:
                all_gather_single(gathered.view(-1), state.mine, group=group)


def check(state: SimpleNamespace) -> None:
    """Every rank holds, for four ranks, 1, 2, 3, 4, and in the subgroup 1, 4."""
    for _label, group, gathered in state.cases:
        for rank, part in zip(dist.get_process_group_ranks(group), gathered, strict=True):
            assert torch.all(part == rank + 1)
