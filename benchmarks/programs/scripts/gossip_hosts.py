"""Decentralised SGD: hosts on a ring, each averages its parameters with its left neighbour's."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def gossip(model):
    """Tell the right neighbour, listen to the left one, and meet halfway."""
    rank, world = dist.get_rank(), dist.get_world_size()
    heard, works = [], []
    for p in model.parameters():
        heard.append(torch.empty_like(p))
        works.append(dist.isend(p.detach(), (rank + 1) % world))
        works.append(dist.irecv(heard[-1], (rank - 1) % world))
    for work in works:
        work.wait()
    for p, theirs in zip(model.parameters(), heard):
        p.lerp_(theirs, 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sizes = (64, args.width, args.width, args.width, 1)
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    model = nn.Sequential(*(m for layer in layers for m in (layer, nn.Tanh())))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(args.steps):
        x = torch.randn(32, 64, generator=gen)
        loss = (model(x) - x[:, :4].mean(1, keepdim=True)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        gossip(model)
        losses.append(loss.item())
        if rank == 0:
            print(f"{step:3d} {losses[-1]:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
