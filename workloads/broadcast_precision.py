"""Does half the precision halve the time of a broadcast?

Only as far as the bytes count: latency stays, and 1/3 arrives as what the type can hold of
it. Look at time and bandwidth per dtype: the bandwidths should agree where the tensor is large.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ANSWER = ("duration_ns_p50", "float32", "float16", "bfloat16")


def setup(ctx, elements: int = 0) -> SimpleNamespace:
    """Allocate per type; 0 is 10,000 x 10,000 elements on a GPU, 1,000 x 1,000 on the CPU."""
    elements = elements or (100_000_000 if ctx.device.type == "cuda" else 1_000_000)
    tensors = [torch.empty(elements, dtype=dtype, device=ctx.device) for dtype in DTYPES]
    return SimpleNamespace(ctx=ctx, tensors=tensors)


def step(state: SimpleNamespace) -> None:
    """Broadcast the same values from rank 0 in each type."""
    for tensor in state.tensors:
        tensor.fill_(1 / 3 if state.ctx.rank == 0 else 0)
        with state.ctx.label(str(tensor.dtype).removeprefix("torch.")):
            dist.broadcast(tensor, src=0)


def check(state: SimpleNamespace) -> None:
    """Every rank holds 1/3, rounded to the type."""
    for tensor in state.tensors:
        assert torch.all(tensor == torch.tensor(1 / 3).to(tensor))
