"""What does it cost when the root of a broadcast or reduce, or everybody else, is late?"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(
    ctx, op: str = "broadcast", late: str = "root", delay_ms: float = 6.0, elements: int = 1000
) -> SimpleNamespace:
    """Rank 0 is the root; ``late`` is root, others or nobody."""
    mine = "root" if ctx.rank == 0 else "others"
    tensor = torch.ones(elements)
    delay_s = delay_ms / 1e3 if late == mine else 0.0
    return SimpleNamespace(op=getattr(dist, op), tensor=tensor, delay_s=delay_s)


def step(state: SimpleNamespace) -> None:
    """Compute, be late or not, communicate."""
    work(16)
    time.sleep(state.delay_s)
    state.op(state.tensor, 0)
    state.tensor.fill_(1)


def check(state: SimpleNamespace) -> None:
    """The last step left ones."""
    assert torch.all(state.tensor == 1)
