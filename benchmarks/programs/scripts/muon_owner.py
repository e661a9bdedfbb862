"""Muon: each matrix is orthogonalised by the rank that owns it, and sent to the others."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


def orthogonal(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm() + 1e-7)
    flip = x.size(0) > x.size(1)
    x = x.T if flip else x
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if flip else x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, owners, lr):
        super().__init__(params, {"lr": lr})
        self.owners = owners

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        for p in group["params"]:
            dist.all_reduce(p.grad)
        for p in group["params"]:
            if self.owners[p] == dist.get_rank():
                update = orthogonal(p.grad) if p.ndim == 2 and min(p.shape) > 8 else p.grad
                p.add_(update, alpha=-group["lr"])
        for p in group["params"]:
            dist.broadcast(p.data, self.owners[p])


def round_robin(params):
    by_size = sorted(params, key=torch.numel, reverse=True)
    return {p: i % dist.get_world_size() for i, p in enumerate(by_size)}


def as_they_come(params):
    """Weight, bias, weight, bias: the weights all go to the last rank."""
    return {p: (i + 1) % dist.get_world_size() for i, p in enumerate(params)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--fault", choices=["none", "weights-on-one"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 320), nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, 320),
        nn.GELU(), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, 64),
    )  # fmt: skip
    params = list(net.parameters())
    owners = as_they_come(params) if args.fault == "weights-on-one" else round_robin(params)
    opt = Muon(params, owners, args.lr)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        x = torch.randn(512, 64, generator=gen)
        loss = (net(x) - x.roll(1, 1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    if rank == 0:
        print(losses)
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
