"""Sequence parallelism: all_gather into each layer, reduce_scatter out of it."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather as gather_with_grad


class Scatter(torch.autograd.Function):
    """Sums over ranks, and keeps the own part of the sequence."""

    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] * dist.get_world_size(), *grad.shape[1:])
        dist.all_gather_into_tensor(out, grad.contiguous())
        return out


class Layer(torch.nn.Module):
    def __init__(self, d, late):
        super().__init__()
        self.norm = torch.nn.LayerNorm(d)
        self.up = torch.nn.Linear(d, 2 * d, bias=False)
        self.down = torch.nn.Linear(2 * d, d, bias=False)
        self.late = late

    def forward(self, x):
        whole = torch.cat(gather_with_grad(self.norm(x)))
        if self.late:
            time.sleep(self.late)
        return x + Scatter.apply(self.down(self.up(whole).relu()))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--length", type=int, default=192)
    ap.add_argument("--fault", default="none", choices=["none", "sleeping-rank"])
    ns = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    late = 0.015 if ns.fault == "sleeping-rank" and rank == 1 else 0.0
    net = torch.nn.Sequential(Layer(160, late), Layer(160, late))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(3 + rank)
    losses = []
    for i in range(14):
        x = torch.randn(ns.length, 160, generator=gen)
        loss = (net(x) - x.abs()).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if rank == 0:
            print(f"{i:>3} {losses[-1]:8.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
