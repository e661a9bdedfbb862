"""What does it cost to bring tensors to the GPU and back, and to communicate from the host?

Look at pageable against pinned bandwidth, and at the host: only a pinned, non-blocking copy
leaves it free. Then at CPU tensors through gloo against CUDA tensors through NCCL. Without a
GPU there is no device to copy to, and the copies stay within host memory.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist

ANSWER = ("duration_ns_p50", "pageable, blocking", "pinned, blocking")


def setup(ctx, elements: int = 4_000_000, dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    """Allocate on the host, in either kind of memory, and on the device."""
    host = {"pageable": torch.full((elements,), 3, dtype=dtype)}
    device = torch.empty(elements, dtype=dtype, device=ctx.device)
    # NCCL has no CPU tensors, gloo has.
    shared = {"cpu": (torch.empty_like(host["pageable"]), dist.new_group(backend="gloo"))}
    if ctx.device.type == "cuda":  # only a GPU asks for pinned memory
        host["pinned"] = host["pageable"].pin_memory()
        shared["cuda"] = (device, dist.group.WORLD)
    back = {
        memory: torch.empty_like(host[memory], pin_memory=memory == "pinned") for memory in host
    }
    return SimpleNamespace(ctx=ctx, host=host, device=device, back=back, shared=shared)


def step(state: SimpleNamespace) -> None:
    """Copy there and back in every way; broadcast 1 and sum it, from the host and the device."""
    for memory, tensor in state.host.items():
        for mode in ("blocking", "non_blocking"):
            state.device.zero_()
            state.back[memory].zero_()
            with state.ctx.label(f"{memory}, {mode}"):
                state.device.copy_(tensor, non_blocking=mode == "non_blocking")
                state.back[memory].copy_(state.device, non_blocking=mode == "non_blocking")
                if state.device.is_cuda:
                    torch.cuda.synchronize()
    for where, (tensor, group) in state.shared.items():
        tensor.fill_(1 if state.ctx.rank == 0 else 0)
        with state.ctx.label(f"{where} tensors"):
            dist.broadcast(tensor, src=0, group=group)
            dist.all_reduce(tensor, group=group)


def check(state: SimpleNamespace) -> None:
    """What came back is what was sent; the sum of the ones is the world size."""
    assert all(torch.all(back == 3) for back in state.back.values())
    assert all(torch.all(tensor == state.ctx.world_size) for tensor, _ in state.shared.values())
