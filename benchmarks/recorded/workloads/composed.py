"""What does it cost to reduce a second tensor in two operations instead of one?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
WAYS = ("all_reduce", "reduce + broadcast", "reduce_scatter + all_gather", "inflated")


def setup(ctx, way: str = "all_reduce", elements: int = 2_000_000) -> SimpleNamespace:
    """Allocate; ``inflated`` makes each rank's part as large as the tensor."""
    ctx.require(way in WAYS, f"no way to reduce {way}")
    part = torch.ones(elements if way == "inflated" else elements // ctx.world_size)
    whole = torch.ones(part.numel() * ctx.world_size)
    once, second = torch.ones(elements), torch.ones(elements)
    return SimpleNamespace(way=way, once=once, second=second, part=part, whole=whole)


def step(state: SimpleNamespace) -> None:
    """Compute, reduce one tensor at once, and another one the chosen way."""
    work(0.1)
    highest = dist.ReduceOp.MAX
    dist.all_reduce(state.once, highest)
    work(0.1)
    if state.way == "all_reduce":
        dist.all_reduce(state.second, highest)
    elif state.way == "reduce + broadcast":
        dist.reduce(state.second, 0, highest)
        dist.broadcast(state.second, 0)
    else:
        reduce_scatter_single(state.part, state.whole, highest)
        all_gather_single(state.whole, state.part)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.second == 1)
    assert torch.all(state.whole == 1)
