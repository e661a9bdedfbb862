"""Tensor parallelism by hand, as Megatron has it: f and g are each other's transpose."""

import argparse

import torch
import torch.distributed as dist


class F(torch.autograd.Function):
    """Copies forward, reduces backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class G(torch.autograd.Function):
    """Reduces forward, copies backward."""

    barriers = 0

    @staticmethod
    def forward(ctx, x):
        for _ in range(G.barriers):
            dist.barrier()
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def shard(*shape):
    return torch.nn.Parameter(torch.randn(*shape) * 0.03)


class ParallelMLP(torch.nn.Module):
    def __init__(self, d, width):
        super().__init__()
        self.column, self.row = shard(d, width), shard(width, d)

    def forward(self, x):
        return x + G.apply(torch.relu(F.apply(x) @ self.column) @ self.row)


def train(fault, steps=14, d=256):
    rank, n = dist.get_rank(), dist.get_world_size()
    G.barriers = 8 if fault == "needless-barriers" else 0
    torch.manual_seed(rank)
    mlps = torch.nn.Sequential(*[ParallelMLP(d, 4 * d // n) for _ in range(4)])
    opt = torch.optim.Adam(mlps.parameters(), lr=1e-3)
    same = torch.Generator().manual_seed(99)
    for step in range(steps):
        x = torch.randn(160, d, generator=same)
        loss = (mlps(x) - x.flip(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 0:
            begun = loss.item()
        if rank == 0:
            print(f"{step=} {loss.item():.4f}")
    assert loss.item() < begun


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--fault", default="none", choices=["none", "needless-barriers"])
    ns = ap.parse_args()
    dist.init_process_group(backend="gloo")
    train(ns.fault)
    dist.destroy_process_group()
