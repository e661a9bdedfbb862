"""Does waiting for communication block the GPU's stream or the host, and who may read when?

On a GPU Work.wait() only orders streams: the host goes on, until it reads the result.
torch.cuda.synchronize() stops it at once. Look at the host's ranges, and at the device's
idle time after each. On gloo the host does the waiting itself.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("host_ns_p50", "wait", "synchronize")


def setup(ctx, elements: int = 4_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate what rank 0 broadcasts, and what is computed from it."""
    tensor = torch.empty(elements, dtype=dtype, device=ctx.device)
    return SimpleNamespace(ctx=ctx, tensor=tensor, doubled=torch.empty_like(tensor), read={})


def start(state: SimpleNamespace) -> dist.Work:
    """Begin to broadcast ones."""
    state.tensor.fill_(1 if state.ctx.rank == 0 else 0)
    return dist.broadcast(state.tensor, src=0, async_op=True)


def step(state: SimpleNamespace) -> None:
    """Wait in each way before computing with the result; read it too early, and in time."""
    with state.ctx.label("wait"):
        start(state).wait()
        torch.add(state.tensor, state.tensor, out=state.doubled)
    if state.ctx.device.type == "cuda":  # on the CPU there is nothing else to synchronize
        with state.ctx.label("synchronize"):
            start(state)
            torch.cuda.synchronize()
            torch.add(state.tensor, state.tensor, out=state.doubled)
    with state.ctx.label("read_too_early"):
        work = start(state)
        state.read["early"] = state.tensor[-1].item()
        work.wait()
    with state.ctx.label("read_in_time"):
        start(state).wait()
        state.read["in_time"] = state.tensor[-1].item()


def check(state: SimpleNamespace) -> None:
    """What was read too early is the old or the new value: nothing orders the two."""
    assert torch.all(state.doubled == 2)
    assert state.read["early"] in (0, 1)
    assert state.read["in_time"] == 1
