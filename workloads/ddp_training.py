"""What does data-parallel training communicate, and what does gradient accumulation save?

DDP reduces gradients in buckets while the backward pass still runs. Look at the overlap, and
at the bytes: only the last micro-batch has to reduce, as no_sync() lets it; without, all do.
"""

import contextlib
from types import SimpleNamespace

import torch
from torch.nn.parallel import DistributedDataParallel

ANSWER = ("size_bytes", "sync_always", "no_sync")


def setup(
    ctx, width: int = 512, layers: int = 8, micro_batches: int = 4, bucket_mb: float = 1.0
) -> SimpleNamespace:
    """Build linear layers that begin, and stay, as identities, so that gradients are known."""
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    for layer in model:
        torch.nn.init.eye_(layer.weight)
    ddp = DistributedDataParallel(model.to(ctx.device), bucket_cap_mb=bucket_mb)
    batch = torch.full((64, width), ctx.rank + 1.0, device=ctx.device)
    return SimpleNamespace(ctx=ctx, ddp=ddp, batch=batch, micro_batches=micro_batches, grads={})


def step(state: SimpleNamespace) -> None:
    """Accumulate the gradients of all micro-batches, twice; no optimizer spoils the identities."""
    for label in ("sync_always", "no_sync"):
        state.ddp.zero_grad(set_to_none=True)
        with state.ctx.label(label):
            for left in reversed(range(state.micro_batches)):
                wait = left > 0 and label == "no_sync"
                with state.ddp.no_sync() if wait else contextlib.nullcontext():
                    loss = state.ddp(state.batch).mean(0).sum() / state.micro_batches
                    loss.backward()
        state.grads[label] = [parameter.grad for parameter in state.ddp.parameters()]


def check(state: SimpleNamespace) -> None:
    """Either way the gradients are the mean of rank + 1: 2.5 for four ranks."""
    for grads in state.grads.values():
        for grad in grads:
            torch.testing.assert_close(grad, torch.full_like(grad, (state.ctx.world_size + 1) / 2))
