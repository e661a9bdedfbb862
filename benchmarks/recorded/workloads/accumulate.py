"""What does it cost to reduce gradients after every micro-batch, and not after the last alone?"""

import contextlib
from types import SimpleNamespace

import torch
from asleep import work
from torch.nn.parallel import DistributedDataParallel


class Layer(torch.nn.Module):
    """A linear layer whose passes take as long as a GPU's would, and no processor."""

    def __init__(self, width: int, ms: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.ms = ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take time in both directions."""
        work(self.ms)
        y = self.linear(x)
        y.register_hook(lambda _: work(2 * self.ms))
        return y


def setup(
    ctx, no_sync: bool = False, width: int = 1024, layers: int = 3, micro_batches: int = 4
) -> SimpleNamespace:
    """Build the model, a bucket per layer."""
    model = torch.nn.Sequential(*(Layer(width, 1.0) for _ in range(layers)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=4, gradient_as_bucket_view=True)
    batch = torch.full((4, width), ctx.rank + 1.0)
    return SimpleNamespace(ddp=ddp, batch=batch, micro_batches=micro_batches, no_sync=no_sync)


def step(state: SimpleNamespace) -> None:
    """Accumulate the gradients of all micro-batches."""
    state.ddp.zero_grad(set_to_none=True)
    for left in reversed(range(state.micro_batches)):
        alone = state.no_sync and left > 0
        with state.ddp.no_sync() if alone else contextlib.nullcontext():
            state.ddp(state.batch).mean().backward()


def check(state: SimpleNamespace) -> None:
    """There are gradients."""
    assert all(parameter.grad is not None for parameter in state.ddp.parameters())
