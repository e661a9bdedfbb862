"""What does it cost when a small operation queues behind large ones that nobody awaits?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(ctx, own_group: bool = False, elements: int = 4_000_000) -> SimpleNamespace:
    """A group works off a group's operations on two threads: two large ones occupy both."""
    group = dist.new_group() if own_group else dist.group.WORLD
    large = [torch.ones(elements) for _ in range(2)]
    gathered = torch.ones(1000 * ctx.world_size)
    return SimpleNamespace(ctx=ctx, group=group, large=large, gathered=gathered)


def step(state: SimpleNamespace) -> None:
    """Begin the large ones, gather what the work needs, work, and wait for them."""
    works = [dist.all_reduce(t, dist.ReduceOp.MAX, async_op=True) for t in state.large]
    parts = list(state.gathered.chunk(state.ctx.world_size))
    dist.all_gather(parts, torch.ones(1000), group=state.group)
    work(30)
    for one in works:
        one.wait()


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.gathered == 1)
