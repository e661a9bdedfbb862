"""Replica exchange: Langevin chains of a lattice field at several temperatures, two on each rank."""

import argparse
import math
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

p = argparse.ArgumentParser()
p.add_argument("--sweeps", type=int, default=22)
p.add_argument("--side", type=int, default=400)
p.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "parallel_tempering"))
p.add_argument("--fault", choices=["none", "swap-fields"], default="none")
args = p.parse_args()

os.makedirs(args.traces, exist_ok=True)
dist.init_process_group(backend="gloo")
rank, world = dist.get_rank(), dist.get_world_size()
generator = torch.Generator().manual_seed(rank)
shared = torch.Generator().manual_seed(99)  # the same dice on every rank
betas = torch.linspace(0.40, 0.44, 2 * world)  # of slot i; which chain sits in it, changes
slot_of = torch.arange(2 * world)
fields = 1.4 * torch.randn(2, args.side, args.side, generator=generator)


def neighbours(f):
    return f.roll(1, 1) + f.roll(-1, 1) + f.roll(1, 2) + f.roll(-1, 2)


def langevin(f, beta, dt=0.02):
    noise = torch.empty_like(f).uniform_(-1.0, 1.0, generator=generator)
    force = f * (1.0 + f * f) - 0.5 * neighbours(f)
    return f - dt * force + (6 * dt / beta).sqrt() * noise


def all_energies(f):
    mine = (0.25 * f.pow(4) + 0.5 * f.pow(2) - 0.25 * f * neighbours(f)).sum(dim=(1, 2))
    everywhere = [torch.empty(2) for _ in range(world)]
    dist.all_gather(everywhere, mine / args.side)
    return torch.cat(everywhere)


def swapped(sweep, e):
    """Pairs of chains in neighbouring slots that change places, as every rank works it out."""
    chain_in = slot_of.argsort()
    for i in range(sweep % 2, 2 * world - 1, 2):
        a, b = chain_in[i].item(), chain_in[i + 1].item()
        odds = math.exp(min(0.0, ((betas[i] - betas[i + 1]) * (e[a] - e[b])).item()))
        if torch.rand((), generator=shared).item() < odds:
            yield a, b


swaps = 0
start = all_energies(fields)
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=True,
    schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
    on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
) as profiler:  # fmt: skip
    for sweep in range(args.sweeps):
        fields = langevin(fields, betas[slot_of[2 * rank : 2 * rank + 2], None, None])
        pairs = list(swapped(sweep, all_energies(fields)))
        swaps += len(pairs)
        if args.fault == "swap-fields":
            # every chain keeps its temperature and takes over the field
            parts = [torch.empty_like(fields) for _ in range(world)]
            dist.all_gather(parts, fields)
            order = list(range(2 * world))
            for a, b in pairs:
                order[a], order[b] = order[b], order[a]
            fields = torch.cat(parts)[order[2 * rank : 2 * rank + 2]]
        else:
            for a, b in pairs:
                slot_of[[a, b]] = slot_of[[b, a]]
        profiler.step()
final = all_energies(fields)
if rank == 0:
    print(f"{swaps} swaps, energies {start.tolist()} -> {final.tolist()}")
assert (final < start).all() and swaps > 0
dist.barrier()  # else a thread of gloo's may still hold tensors when Python ends
dist.destroy_process_group()
