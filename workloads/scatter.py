"""What does it cost to hand each rank its own part of what one rank has?

All but the root's own part leaves through the root's one link. Look at the size: bandwidth
is counted on the whole, n times what a rank receives.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "default_group", "subgroup")


def setup(ctx, elements: int = 250_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate for all ranks, and for the first and the last alone. Rank 0 is the root."""
    ranks, ends = list(range(ctx.world_size)), sorted({0, ctx.world_size - 1})
    parts = [torch.full((elements,), i + 1, dtype=dtype, device=ctx.device) for i in ranks]
    pairs = [torch.tensor([2 * i, 2 * i + 1], device=ctx.device) for i in ranks]
    cases = [
        ("default_group", dist.group.WORLD, parts, torch.empty_like(parts[0])),
        ("int64", dist.group.WORLD, pairs, torch.empty_like(pairs[0])),
        ("subgroup", dist.new_group(ends), [parts[i] for i in ends], torch.empty_like(parts[0])),
    ]
    cases = [case for case in cases if dist.get_rank(case[1]) >= 0]
    return SimpleNamespace(ctx=ctx, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Scatter i + 1 to rank i, then the pairs [0, 1], [2, 3], …, then within the subgroup."""
    for label, group, parts, received in state.cases:
        received.zero_()
        with state.ctx.label(label):
            dist.scatter(received, parts if state.ctx.rank == 0 else None, src=0, group=group)


def check(state: SimpleNamespace) -> None:
    """Rank i holds i + 1, and [2i, 2i + 1]."""
    for _label, group, parts, received in state.cases:
        assert received.equal(parts[dist.get_rank(group)])
