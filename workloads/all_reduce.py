"""What does it cost to reduce on every rank, and does the kind of reduction matter?

Every reduction moves the same bytes: 2(n-1)/n of the tensor out of each rank at least. So
their bus bandwidths should agree. Look for one that does not.
"""

import math
from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "SUM", "PRODUCT", "MIN", "MAX", "AVG")


def setup(ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate a tensor per reduction, and one for the first and the last rank alone."""
    labels = ["SUM", "PRODUCT", "MIN", "MAX"]
    # AVG needs floating point; gloo did not have it at first, and then had it wrong.
    if dtype.is_floating_point and (ctx.backend == "nccl" or torch.__version__ >= "2.13"):
        labels.append("AVG")
    two = sorted({0, ctx.world_size - 1})
    labels += ["subgroup"] if ctx.rank in two else []
    tensors = {label: torch.empty(elements, dtype=dtype, device=ctx.device) for label in labels}
    return SimpleNamespace(ctx=ctx, tensors=tensors, two=two, subgroup=dist.new_group(two))


def step(state: SimpleNamespace) -> None:
    """Reduce rank + 1 in every way, then sum it over the subgroup."""
    for label, tensor in state.tensors.items():
        group = state.subgroup if label == "subgroup" else None
        reduction = getattr(dist.ReduceOp, label, dist.ReduceOp.SUM)
        tensor.fill_(state.ctx.rank + 1)
        with state.ctx.label(label):
            dist.all_reduce(tensor, reduction, group=group)


def check(state: SimpleNamespace) -> None:
    """Every rank holds, for four ranks, 10, 24, 1, 4, 2.5, and 1 + 4."""
    n = state.ctx.world_size
    expected = {"SUM": n * (n + 1) / 2, "PRODUCT": math.factorial(n), "MIN": 1, "MAX": n}
    expected |= {"AVG": (n + 1) / 2, "subgroup": sum(rank + 1 for rank in state.two)}
    for label, tensor in state.tensors.items():
        value = torch.tensor(float(expected[label])).to(tensor)
        torch.testing.assert_close(tensor, value.expand_as(tensor))
