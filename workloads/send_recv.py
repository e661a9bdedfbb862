"""What does it cost to send from one rank to another, and to get an answer?

Ranks 0 and 1, 2 and 3, … play ping-pong. Look at the receiver's wait: a recv that starts
before its send (a late sender) lasts longer than the transfer.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "ping", "pong")


def setup(ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate both directions. An odd rank out plays no part."""
    ctx.require(ctx.world_size >= 2, "send_recv needs at least 2 ranks")
    sent = torch.full((elements,), ctx.rank + 1, dtype=dtype, device=ctx.device)
    return SimpleNamespace(ctx=ctx, peer=ctx.rank ^ 1, sent=sent, received=torch.empty_like(sent))


def step(state: SimpleNamespace) -> None:
    """The even rank sends first, the odd one receives first."""
    if state.peer >= state.ctx.world_size:
        return
    state.received.zero_()
    if state.ctx.rank < state.peer:
        with state.ctx.label("ping"):
            dist.send(state.sent, dst=state.peer)
        with state.ctx.label("pong"):
            dist.recv(state.received, src=state.peer)
    else:
        with state.ctx.label("ping"):
            dist.recv(state.received, src=state.peer)
        with state.ctx.label("pong"):
            dist.send(state.sent, dst=state.peer)


def check(state: SimpleNamespace) -> None:
    """Each holds what its peer sent."""
    if state.peer < state.ctx.world_size:
        assert torch.all(state.received == state.peer + 1)
