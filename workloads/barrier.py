"""What does it cost to wait for each other?

A barrier moves nothing: what it costs is the wait for the last rank. Here rank r comes
r * delay_ms late. Look at how the waits fall from rank to rank.
"""

import time
from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "default_group", "subgroup")


def setup(ctx, delay_ms: float = 2.0) -> SimpleNamespace:
    """Make a subgroup of the first and the last rank."""
    two = dist.new_group(sorted({0, ctx.world_size - 1}))
    groups = {"default_group": dist.group.WORLD, "subgroup": two}
    groups = {label: group for label, group in groups.items() if dist.get_rank(group) >= 0}
    devices = [ctx.device.index] if ctx.device.type == "cuda" else None
    state = SimpleNamespace(ctx=ctx, groups=groups, devices=devices, came={}, left={})
    state.delay_s = delay_ms / 1e3
    return state


def step(state: SimpleNamespace) -> None:
    """Come late and wait: for all ranks, then for the subgroup."""
    for label, group in state.groups.items():
        time.sleep(state.ctx.rank * state.delay_s)
        with state.ctx.label(label):
            state.came[label] = time.monotonic_ns()
            dist.barrier(group, device_ids=state.devices)
            state.left[label] = time.monotonic_ns()


def check(state: SimpleNamespace) -> None:
    """Nobody left before the last one came (on one host, whose ranks share a clock)."""
    for label, group in state.groups.items():
        last = torch.tensor(state.came[label], device=state.ctx.device)
        dist.all_reduce(last, dist.ReduceOp.MAX, group=group)
        assert state.left[label] >= last.item()
