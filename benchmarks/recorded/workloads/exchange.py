"""What does it cost when an all_to_all sends most of its bytes to one rank?"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from asleep import work


def setup(ctx, even: bool = False, elements: int = 4_000_000) -> SimpleNamespace:
    """Every rank sends as much; ``even`` or not, all that is sent is the same."""
    n = ctx.world_size
    others = elements // (n if even else 4 * n)
    splits = [elements - (n - 1) * others] + [others] * (n - 1)
    received = [splits[ctx.rank]] * n
    return SimpleNamespace(
        splits=splits, got=received, sent=torch.ones(elements), out=torch.zeros(sum(received))
    )


def step(state: SimpleNamespace) -> None:
    """Compute and exchange."""
    work(0.1)
    dist.all_to_all_single(state.out, state.sent, state.got, state.splits)


def check(state: SimpleNamespace) -> None:
    """Ones came from everywhere."""
    assert torch.all(state.out == 1)
