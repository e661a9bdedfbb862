"""What does communication cost that nobody needs: barriers, or a second reduction?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(ctx, needless: str = "barriers", elements: int = 1_000_000) -> SimpleNamespace:
    """``needless`` is barriers, twice or nothing."""
    ctx.require(needless in ("barriers", "twice", "nothing"), f"no fault {needless}")
    again = dist.new_group()
    times = 20 if elements < 100_000 else 4
    return SimpleNamespace(times=times, needless=needless, again=again, tensor=torch.ones(elements))


def step(state: SimpleNamespace) -> None:
    """Compute and reduce, several times."""
    for _ in range(state.times):
        work(0.1)
        if state.needless == "barriers":
            dist.barrier()
        dist.all_reduce(state.tensor, dist.ReduceOp.MAX)
        if state.needless == "twice":
            dist.all_reduce(state.tensor, dist.ReduceOp.MAX, group=state.again)


def check(state: SimpleNamespace) -> None:
    """Ones stay ones."""
    assert torch.all(state.tensor == 1)
