"""What does it cost when every rank has something for every rank, evenly and unevenly?

Look at the imbalance: the operation lasts as long as its busiest rank. Unevenly that is the
last one, which receives n times what the first one does.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "tensor", "uneven")


def setup(ctx, elements: int = 250_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate what the i-th rank is sent: as much as the others, or i + 1 times as much."""
    n, ends = ctx.world_size, sorted({0, ctx.world_size - 1})
    even, two = [elements] * n, [elements] * len(ends)
    splits = {"list": (even, even), "tensor": (even, even), "subgroup": (two, two)}
    splits["uneven"] = ([elements * (ctx.rank + 1)] * n, [elements * (i + 1) for i in range(n)])
    if ctx.backend == "gloo" and torch.__version__ < "2.13":
        del splits["list"]  # gloo did not have it
    cases, subgroup = [], dist.new_group(ends)
    for label, (outs, ins) in splits.items():
        group = subgroup if label == "subgroup" else dist.group.WORLD
        if dist.get_rank(group) >= 0:
            tensors = [torch.empty(sum(s), dtype=dtype, device=ctx.device) for s in (outs, ins)]
            cases.append((label, group, outs, ins, *tensors))
    return SimpleNamespace(ctx=ctx, cases=cases)


def step(state: SimpleNamespace) -> None:
    """Send n * rank + i to the i-th rank: list API, tensor API, to the subgroup, unevenly."""
    for label, group, outs, ins, received, sent in state.cases:
        for i, part in enumerate(sent.split(ins)):
            part.fill_(state.ctx.world_size * state.ctx.rank + i)
        with state.ctx.label(label):
            if label == "list":
                dist.all_to_all(list(received.split(outs)), list(sent.split(ins)), group=group)
            else:
                splits = (outs, ins) if label == "uneven" else ()
                dist.all_to_all_single(received, sent, *splits, group=group)


def check(state: SimpleNamespace) -> None:
    """The i-th rank holds i, n + i, 2n + i and so on."""
    n = state.ctx.world_size
    for _label, group, outs, _ins, received, _sent in state.cases:
        ranks, me = dist.get_process_group_ranks(group), dist.get_rank(group)
        for rank, part in zip(ranks, received.split(outs), strict=True):
            assert torch.all(part == n * rank + me)
