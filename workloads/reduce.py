"""What does it cost to sum on one rank?

A broadcast in reverse: only the root learns the sum, and it waits for everybody. Look at the
root's wait, and compare with all_reduce, which tells everybody.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "default_group", "subgroup")


def setup(ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate for all ranks, and for the first and the last alone. Rank 0 is the root."""
    two = dist.new_group(sorted({0, ctx.world_size - 1}))
    cases = [
        (label, group, torch.empty(elements, dtype=dtype, device=ctx.device))
        for label, group in (("default_group", dist.group.WORLD), ("subgroup", two))
        if dist.get_rank(group) >= 0
    ]
    return SimpleNamespace(ctx=ctx, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Sum rank + 1 over all ranks, then over the subgroup."""
    for label, group, tensor in state.cases:
        tensor.fill_(state.ctx.rank + 1)
        with state.ctx.label(label):
            dist.reduce(tensor, dst=0, group=group)


def check(state: SimpleNamespace) -> None:
    """Rank 0 holds the sums, for four ranks 10 and 1 + 4. No other rank is promised anything."""
    for _label, group, tensor in state.cases:
        if state.ctx.rank == 0:
            assert torch.all(tensor == sum(i + 1 for i in dist.get_process_group_ranks(group)))
