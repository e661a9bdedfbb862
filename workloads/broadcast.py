"""What does it cost to give every rank what one rank has?

No algorithm beats size / bandwidth. Look at who waits: a rank that comes before the root
waits for it, while the root need not wait for anybody.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "default_group", "subgroup")


def setup(ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate for all ranks, and for the first and the last alone. The last is the root."""
    root = ctx.world_size - 1
    two = dist.new_group(sorted({0, root}))
    large = torch.full((elements,), 7, dtype=dtype, device=ctx.device)
    numbers = torch.tensor([1, 2, 3], device=ctx.device)
    cases = [
        ("int64", dist.group.WORLD, numbers, torch.empty_like(numbers)),
        ("default_group", dist.group.WORLD, large, torch.empty_like(large)),
        ("subgroup", two, large, torch.empty_like(large)),
    ]
    cases = [case for case in cases if dist.get_rank(case[1]) >= 0]
    return SimpleNamespace(ctx=ctx, root=root, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Broadcast three integers, then a large tensor, then it within the subgroup."""
    for label, group, source, tensor in state.cases:
        tensor.copy_(source) if state.ctx.rank == state.root else tensor.zero_()
        with state.ctx.label(label):
            dist.broadcast(tensor, src=state.root, group=group)


def check(state: SimpleNamespace) -> None:
    """Every rank holds what the root had: [1, 2, 3], and sevens."""
    for _label, _group, source, tensor in state.cases:
        assert tensor.equal(source)
