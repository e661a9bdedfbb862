"""What does it cost to sum, and leave each rank its part of the sum?

Where it is native, half of an all_reduce. Look at the operation that ran: gloo runs a full
all_reduce and throws most of it away, for the list API one per rank.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

# Its name since torch 2.13; before, it was reduce_scatter_tensor.
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

ANSWER = ("duration_ns_p50", "list", "tensor", "subgroup")


def setup(ctx, elements: int = 250_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate a part per rank: of all ranks, and of the first and the last alone."""
    world, two = dist.group.WORLD, dist.new_group(sorted({0, ctx.world_size - 1}))
    groups = {"list": world, "tensor": world, "subgroup": two}
    if ctx.backend == "gloo" and torch.__version__ < "2.8":
        del groups["list"]  # gloo did not have it
    cases = []
    for label, group in groups.items():
        if dist.get_rank(group) >= 0:
            size = (dist.get_world_size(group), elements)
            parts = torch.empty(size, dtype=dtype, device=ctx.device)
            cases.append((label, group, parts, torch.empty_like(parts[0])))
    return SimpleNamespace(ctx=ctx, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Sum rank + i for the i-th rank: list API, tensor API, and within the subgroup."""
    for label, group, parts, mine in state.cases:
        for i, part in enumerate(parts):
            part.fill_(state.ctx.rank + i)
        with state.ctx.label(label):
            if label == "list":
                dist.reduce_scatter(mine, list(parts), group=group)
            else:
                reduce_scatter_single(mine, parts.view(-1), group=group)


def check(state: SimpleNamespace) -> None:
    """The i-th rank holds the sum of rank + i: for four ranks 6 + 4i."""
    for _label, group, _parts, mine in state.cases:
        ranks = dist.get_process_group_ranks(group)
        assert torch.all(mine == sum(ranks) + len(ranks) * dist.get_rank(group))
