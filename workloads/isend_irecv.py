"""What does a ring shift cost when nobody waits before everybody has been served?

Every rank sends to the next and receives from the one before. Look at send and receive
running at the same time, one by one and as a batch.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "separate", "batched")


def setup(ctx, elements: int = 1_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate both directions."""
    ctx.require(ctx.world_size >= 2, "isend_irecv needs at least 2 ranks")
    sent = torch.full((elements,), ctx.rank + 1, dtype=dtype, device=ctx.device)
    received = {label: torch.empty_like(sent) for label in ("separate", "batched")}
    return SimpleNamespace(ctx=ctx, sent=sent, received=received)


def step(state: SimpleNamespace) -> None:
    """Shift rank + 1 by one rank, twice."""
    n, rank = state.ctx.world_size, state.ctx.rank
    for label, received in state.received.items():
        received.zero_()
        send = dist.P2POp(dist.isend, state.sent, (rank + 1) % n)
        receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)
        with state.ctx.label(label):
            if label == "batched":
                works = dist.batch_isend_irecv([send, receive])
            else:
                # NCCL may queue both on one stream, so somebody must receive first.
                order = [send, receive] if rank % 2 == 0 else [receive, send]
                works = [p2p.op(p2p.tensor, p2p.peer) for p2p in order]
            for work in works:
                work.wait()


def check(state: SimpleNamespace) -> None:
    """Each holds what the rank before it sent."""
    for received in state.received.values():
        assert torch.all(received == (state.ctx.rank - 1) % state.ctx.world_size + 1)
