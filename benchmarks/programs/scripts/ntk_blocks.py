"""The empirical tangent kernel over all ranks' samples, from per-sample gradients in chunks."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.profiler import ProfilerActivity, profile, schedule


def per_sample_grads(net, x, y):
    params = {k: v.detach() for k, v in net.named_parameters()}

    def loss(p, a, b):
        return (functional_call(net, p, (a[None],)) - b).square().mean()

    found = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    return torch.cat([g.flatten(1) for g in found.values()], dim=1)


def chunk_to_peer(chunk, peer):
    """Sends a chunk and receives the peer's; the handles have to be waited for."""
    theirs = torch.empty_like(chunk)
    first, second = (dist.isend, dist.irecv) if dist.get_rank() < peer else (dist.irecv, dist.isend)
    tensors = (chunk, theirs) if first is dist.isend else (theirs, chunk)
    return theirs, [first(tensors[0], peer), second(tensors[1], peer)]


def kernel_rows(grads, chunks, peer):
    """My rows of the kernel: against my own samples, and against the peer's."""
    mine = [c.contiguous() for c in grads.chunk(chunks, dim=1)]
    own = torch.zeros(len(grads), len(grads))
    cross = torch.zeros(len(grads), len(grads))
    for chunk in mine:
        theirs, works = chunk_to_peer(chunk, peer)
        own.addmm_(chunk, chunk.T)  # needs nothing from the peer
        for work in works:
            work.wait()
        cross.addmm_(chunk, theirs.T)
    return torch.cat([own, cross], dim=1)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--samples", type=int, default=64)
    cli.add_argument("--width", type=int, default=400)
    cli.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "ntk_blocks"))
    cli.add_argument("--fault", choices=["none", "thin-chunks"], default="none")
    opt = cli.parse_args()
    os.makedirs(opt.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank, chunks = dist.get_rank(), 4 if opt.fault == "none" else 64
    assert dist.get_world_size() == 2
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, opt.width), nn.Tanh(), nn.Linear(opt.width, 20))
    gen = torch.Generator().manual_seed(rank)
    trace = []
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{opt.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for _ in range(22):
            x = torch.randn(opt.samples, 30, generator=gen)
            grads = per_sample_grads(net, x, x[:, :20].sin())
            kernel = kernel_rows(grads, chunks, 1 - rank)
            weights = kernel.mean(dim=1)
            with torch.no_grad():  # a step along my samples' gradients, as the kernel weighs them
                step = (weights[:, None] * grads).mean(dim=0)
                dist.all_reduce(step)
                vector = nn.utils.parameters_to_vector(net.parameters())
                nn.utils.vector_to_parameters(vector - 0.5 * step, net.parameters())
            trace.append(kernel[:, : opt.samples].trace().item())
            profiler.step()
    print(f"rank {rank}: trace {trace[0]:.3f} -> {trace[-1]:.3f}")
    assert trace[-1] < trace[0]
    dist.destroy_process_group()
