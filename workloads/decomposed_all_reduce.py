"""Why is an all_reduce faster than the operations it is made of?

All_reduce = reduce + broadcast = reduce_scatter + all_gather. At equal bytes the latter should
cost one launch more, and the former loses the pipelining. Look at the bytes first: with
variant=full_output each rank's part of the reduce_scatter is as large as the tensor, as in a
well-known puzzle, so that n times the tensor moves; that alone makes it n times as slow.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

# Their names since torch 2.13; before, they were all_gather_into_tensor, reduce_scatter_tensor.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

ANSWER = ("duration_ns_p50", "all_reduce", "reduce + broadcast", "reduce_scatter + all_gather")


def setup(
    ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32, variant: str = "matched"
) -> SimpleNamespace:
    """Allocate; ``elements`` is rounded up to a multiple of the world size."""
    ctx.require(variant in ("matched", "full_output"), "variant is matched or full_output")
    n, shard = ctx.world_size, -(-elements // ctx.world_size)
    part = torch.empty(shard if variant == "matched" else n * shard, dtype=dtype, device=ctx.device)
    once, composed, whole = (part.new_empty(s) for s in (n * shard, n * shard, n * part.numel()))
    return SimpleNamespace(ctx=ctx, once=once, composed=composed, whole=whole, part=part)


def step(state: SimpleNamespace) -> None:
    """Sum rank + 1 on every rank in three ways."""
    for tensor in (state.once, state.composed, state.whole):
        tensor.fill_(state.ctx.rank + 1)
    with state.ctx.label("all_reduce"):
        dist.all_reduce(state.once)
    with state.ctx.label("reduce + broadcast"):
        dist.reduce(state.composed, dst=0)
        dist.broadcast(state.composed, src=0)
    with state.ctx.label("reduce_scatter + all_gather"):
        reduce_scatter_single(state.part, state.whole)
        all_gather_single(state.whole, state.part)


def check(state: SimpleNamespace) -> None:
    """All three give the sum everywhere: 10 for four ranks."""
    n = state.ctx.world_size
    for tensor in (state.once, state.composed, state.whole):
        assert torch.all(tensor == n * (n + 1) // 2)
