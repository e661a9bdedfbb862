"""What happens when two ranks both receive before they send?

The thing not to do: each waits for what the other would send afterwards. Here a timeout ends
it. Look at the two recvs that only wait, and at the cure: one rank sends first.
"""

from datetime import timedelta
from types import SimpleNamespace

import torch
import torch.distributed as dist

ITERATIONS = 1
WARMUP = 0
ANSWER = ("duration_ns_p50", "one_sends_first", "both_receive_first")


def setup(ctx, elements: int = 1_000, timeout_s: float = 1.0) -> SimpleNamespace:
    """Allocate, on the CPU: on gloo a timeout raises, NCCL's would end the process."""
    ctx.require(ctx.world_size >= 2, "deadlock needs at least 2 ranks")
    sent, timeout = torch.full((elements,), ctx.rank + 1), timedelta(seconds=timeout_s)
    received = torch.empty_like(sent)
    return SimpleNamespace(ctx=ctx, timeout=timeout, error="", sent=sent, received=received)


def step(state: SimpleNamespace) -> None:
    """Let ranks 0 and 1 exchange, twice, each time in a new group: a timeout breaks it."""
    doomed, sound = (dist.new_group([0, 1], backend="gloo") for _ in range(2))
    peer = 1 - state.ctx.rank
    if peer < 0:
        return
    with state.ctx.label("both_receive_first"):
        try:
            dist.irecv(state.received, src=peer, group=doomed).wait(state.timeout)
            dist.send(state.sent, dst=peer, group=doomed)  # nobody gets here
        except RuntimeError as error:
            state.error = str(error)
    with state.ctx.label("one_sends_first"):
        if state.ctx.rank == 0:
            dist.send(state.sent, dst=peer, group=sound)
        dist.recv(state.received, src=peer, group=sound)
        if state.ctx.rank == 1:
            dist.send(state.sent, dst=peer, group=sound)


def check(state: SimpleNamespace) -> None:
    """The first recv failed, the second got what the peer sent."""
    if state.ctx.rank < 2:
        assert state.error  # its own timeout, or that the peer hung up after the peer's
        assert torch.all(state.received == 2 - state.ctx.rank)
