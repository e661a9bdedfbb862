"""Learns the stencil of a diffusion; each rank has a slab and its neighbours' edges."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


def exchange(slab):
    """The slab with a row of each neighbour; zeros outside the domain."""
    rank, size = dist.get_rank(), dist.get_world_size()
    above, below = torch.zeros_like(slab[:1]), torch.zeros_like(slab[:1])
    pending = []
    if rank > 0:
        pending += [dist.isend(slab[:1].contiguous(), rank - 1), dist.irecv(above, rank - 1)]
    if rank < size - 1:
        pending += [dist.isend(slab[-1:].contiguous(), rank + 1), dist.irecv(below, rank + 1)]
    for work in pending:
        work.wait()
    return torch.cat([above, slab, below])


def diffuse(padded, stencil):
    return F.conv2d(F.pad(padded, (1, 1))[None, None], stencil[None, None])[0, 0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--columns", type=int, default=300)
    parser.add_argument("--fault", choices=["none", "slow-sensor"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    true = torch.tensor([[0.0, 0.2, 0.0], [0.2, 0.2, 0.2], [0.0, 0.2, 0.0]])
    stencil = torch.zeros(3, 3, requires_grad=True)
    opt = torch.optim.Adam([stencil], lr=0.05)
    gen = torch.Generator().manual_seed(rank)
    errors = []
    for step in range(14):
        time.sleep(0.015)  # what the sensors of this slab measured
        if rank == 1 and args.fault == "slow-sensor":
            time.sleep(0.012)
        field = torch.randn(args.rows, args.columns, generator=gen)
        residual = diffuse(exchange(field), stencil) - diffuse(exchange(field), true)
        loss = residual.square().mean()
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(stencil.grad)
        stencil.grad /= dist.get_world_size()
        opt.step()
        errors.append(loss.item())
        if rank == 0:
            print(f"{step:2d} {errors[-1]:.5f}")
    assert errors[-1] < errors[0]
    dist.destroy_process_group()
