"""What does it cost to collect every rank's tensor on one rank?

All parts arrive through the root's one link. Look at the root's duration against the others',
which are done as soon as they have sent.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "default_group", "subgroup")


def setup(ctx, elements: int = 250_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate for all ranks, and for the first and the last alone. Rank 0 is the root."""
    two = dist.new_group(sorted({0, ctx.world_size - 1}))
    mine = torch.full((elements,), ctx.rank + 1, dtype=dtype, device=ctx.device)
    cases = []
    for label, group in (("default_group", dist.group.WORLD), ("subgroup", two)):
        if dist.get_rank(group) >= 0:
            size = dist.get_world_size(group) if ctx.rank == 0 else 0
            cases.append((label, group, mine.new_empty(size, elements)))
    return SimpleNamespace(ctx=ctx, mine=mine, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Gather rank + 1 from all ranks, then from the subgroup."""
    for label, group, gathered in state.cases:
        gathered.zero_()
        with state.ctx.label(label):
            dist.gather(state.mine, list(gathered) or None, dst=0, group=group)


def check(state: SimpleNamespace) -> None:
    """Rank 0 holds, for four ranks, 1, 2, 3, 4 and 1, 4."""
    for _label, group, gathered in state.cases:
        for rank, part in zip(dist.get_process_group_ranks(group), gathered, strict=False):
            assert torch.all(part == rank + 1)
