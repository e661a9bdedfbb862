"""ZeRO-2 by hand: gradients are reduced and scattered, each rank has a share of Adam's states."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Flat:
    """Some parameters in one buffer, of which each rank updates its own shard."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        world, rank = dist.get_world_size(), dist.get_rank()
        numel = sum(p.numel() for p in self.parameters)
        size = -(-numel // world)
        self.full = torch.zeros(size * world)
        self.grad = torch.zeros(size * world)
        start = 0
        for p in self.parameters:
            part = slice(start, start + p.numel())
            self.full[part] = p.detach().flatten()
            p.data = self.full[part].view_as(p)
            p.grad = self.grad[part].view_as(p)
            start += p.numel()
        self.shard = nn.Parameter(self.full[rank * size : (rank + 1) * size].clone())
        self.shard.grad = torch.zeros(size)

    def reduce(self):
        dist.reduce_scatter_tensor(self.shard.grad, self.grad)
        self.shard.grad /= dist.get_world_size()

    def gather(self):
        dist.all_gather_into_tensor(self.full, self.shard.detach())


class Zero2:
    """An optimizer of flats; ``flats`` of one parameter each is how it was first written."""

    def __init__(self, groups, lr):
        self.flats = [Flat(group) for group in groups]
        self.adam = torch.optim.Adam([flat.shard for flat in self.flats], lr=lr)

    def zero_grad(self):
        for flat in self.flats:
            flat.grad.zero_()

    def step(self):
        for flat in self.flats:
            flat.reduce()
        self.adam.step()
        for flat in self.flats:
            flat.gather()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--fault", choices=["none", "per-tensor"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, args.dim),
        *(Residual(args.dim) for _ in range(args.depth)),
        nn.Linear(args.dim, 20),
    )
    parameters = list(model.parameters())
    groups = [[p] for p in parameters] if args.fault == "per-tensor" else [parameters]
    optimizer = Zero2(groups, lr=2e-3)
    gen = torch.Generator().manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(14):
        x = torch.randn(128, 20, generator=gen)
        target = torch.sin(x).cumsum(1) / 4
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses
    checksum = torch.stack([p.detach().double().sum() for p in parameters]).sum()
    both = [torch.zeros_like(checksum) for _ in range(dist.get_world_size())]
    dist.all_gather(both, checksum)
    assert torch.stack(both).unique().numel() == 1, both
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
