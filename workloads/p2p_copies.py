"""Why do some GPUs get the same tensors much later than others?

One process copies a list of tensors from GPU 0 to each of up to three others, on a stream per
destination, then to each alone. Look at the bandwidth per pair: where it is as low alone as
together, the pair's link is to blame (NVLinks, PCIe, the way across sockets), not contention.
"""

from types import SimpleNamespace

import torch

WORLD_SIZE = 1


def setup(
    ctx, elements: int = 10_000_000, tensors: int = 10, dtype: torch.dtype = torch.float32
) -> SimpleNamespace:
    """Allocate the tensors on GPU 0, and as many on each destination."""
    gpus = torch.cuda.device_count()
    ctx.require(gpus >= 2, f"p2p_copies needs at least 2 CUDA devices, this process sees {gpus}")
    source = [torch.full((elements,), i + 1, dtype=dtype, device="cuda:0") for i in range(tensors)]
    copies = {
        gpu: [torch.zeros_like(tensor, device=f"cuda:{gpu}") for tensor in source]
        for gpu in range(1, min(gpus, 4))
    }
    streams = {gpu: torch.cuda.Stream("cuda:0") for gpu in copies}
    for gpu in (0, *copies):
        torch.cuda.synchronize(gpu)
    return SimpleNamespace(ctx=ctx, source=source, copies=copies, streams=streams)


def step(state: SimpleNamespace) -> None:
    """Copy to all destinations at once, then to one after the other."""
    alone = {f"to cuda:{gpu} alone": [gpu] for gpu in state.copies}
    for label, gpus in {"together": list(state.copies), **alone}.items():
        with state.ctx.label(label):
            for gpu in gpus:
                with torch.cuda.stream(state.streams[gpu]):
                    for copy, tensor in zip(state.copies[gpu], state.source, strict=True):
                        copy.copy_(tensor, non_blocking=True)
            torch.cuda.synchronize("cuda:0")


def check(state: SimpleNamespace) -> None:
    """Every destination holds 1, 2, 3 and so on."""
    for copies in state.copies.values():
        assert all(torch.all(copy == i + 1) for i, copy in enumerate(copies))
