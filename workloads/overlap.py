"""How much of an all_reduce can hide behind compute that does not need its result?

All three variants do the same work. Look at exposed communication: all of it when the call is
synchronous, little when wait() comes after the compute, all again when it comes too early.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("overlapped_communication_ns", "synchronous", "overlapped", "waited_too_early")


def setup(
    ctx, elements: int = 4_000_000, dtype: torch.dtype = torch.float32, products: int = 8
) -> SimpleNamespace:
    """Allocate what is reduced, and two 512 x 512 matrices whose product is ones."""
    tensors = [torch.empty(elements, dtype=dtype, device=ctx.device) for _ in range(3)]
    ones = torch.ones(512, 512, dtype=dtype, device=ctx.device)
    matrices = (ones, ones / 512, ones.clone())
    return SimpleNamespace(ctx=ctx, tensors=tensors, products=products, matrices=matrices)


def compute(state: SimpleNamespace) -> None:
    """Multiply matrices: work that is independent of the all_reduce."""
    a, b, product = state.matrices
    for _ in range(state.products):
        torch.mm(a, b, out=product)


def step(state: SimpleNamespace) -> None:
    """Reduce and compute: in turn, at once, and in turn by mistake."""
    for tensor in (*state.tensors, state.matrices[-1]):
        tensor.fill_(state.ctx.rank + 1)
    with state.ctx.label("synchronous"):
        dist.all_reduce(state.tensors[0])
        compute(state)
    with state.ctx.label("overlapped"):
        work = dist.all_reduce(state.tensors[1], async_op=True)
        compute(state)
        work.wait()
    with state.ctx.label("waited_too_early"):
        dist.all_reduce(state.tensors[2], async_op=True).wait()
        compute(state)


def check(state: SimpleNamespace) -> None:
    """The sums are right on every rank, 10 for four, and so is the product."""
    n = state.ctx.world_size
    assert all(torch.all(tensor == n * (n + 1) // 2) for tensor in state.tensors)
    assert torch.all(state.matrices[-1] == 1)
