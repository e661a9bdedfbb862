"""DiLoCo: local AdamW steps, an outer Nesterov step on the averaged change.

Three workers train a residual MLP on their own part of a regression problem; after
every two inner steps the change of the weights is averaged over all of them.

    torchrun --nproc-per-node 3 diloco.py [--fault fp64_outer]

--fault fp64_outer: the outer optimizer keeps its state in float64 and the averaging
was written on that copy, so twice the bytes go over the wire.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

INNER = 2
WIDTH = 640
BATCH = 12


class ResMLP(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.inp = nn.Linear(32, WIDTH)
        self.mid = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.out = nn.Linear(WIDTH, 8)

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        for layer in self.mid:
            h = h + 0.3 * torch.relu(layer(h))
        return self.out(h)


class OuterNesterov:
    """theta <- theta - lr * (g + mu * m), g the mean of (theta_start - theta_local)."""

    def __init__(self, model, wire_dtype, lr=0.7, mu=0.6):
        self.model, self.wire, self.lr, self.mu = model, wire_dtype, lr, mu
        self.theta = parameters_to_vector(model.parameters()).detach().to(wire_dtype)
        self.m = torch.zeros_like(self.theta)
        self.world = dist.get_world_size()

    @torch.no_grad()
    def step(self):
        local = parameters_to_vector(self.model.parameters()).to(self.wire)
        delta = self.theta - local
        dist.all_reduce(delta)
        delta /= self.world
        self.m.mul_(self.mu).add_(delta)
        self.theta.sub_(delta.add_(self.m, alpha=self.mu), alpha=self.lr)
        vector_to_parameters(self.theta.float(), self.model.parameters())


def make_problem(rank):
    g = torch.Generator().manual_seed(1)
    w1 = torch.randn(32, 24, generator=g) / 32**0.5
    w2 = torch.randn(24, 8, generator=g) / 24**0.5
    own = torch.Generator().manual_seed(60 + rank)
    shift = 0.3 * torch.randn(32, generator=own)

    def batch():
        x = torch.randn(BATCH, 32, generator=own) + shift
        return x, torch.tanh(x @ w1) @ w2

    return batch


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["none", "fp64_outer"], default="none")
    ap.add_argument("--steps", type=int, default=26, help="inner steps")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ResMLP()
    inner = torch.optim.AdamW(model.parameters(), lr=5e-4)
    outer = OuterNesterov(model, torch.float64 if args.fault == "fp64_outer" else torch.float32)
    batch = make_problem(rank)

    losses, times = [], []
    for step in range(1, args.steps + 1):
        start = time.perf_counter()
        x, y = batch()
        loss = nn.functional.mse_loss(model(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()
        if step % INNER == 0:
            outer.step()
        losses.append(loss.detach())
        times.append(time.perf_counter() - start)

    curve = torch.stack(losses)
    dist.all_reduce(curve)
    curve /= dist.get_world_size()
    if rank == 0:
        assert curve[-4:].mean() < curve[:4].mean(), curve
        print(
            f"loss {curve[0]:.4f} -> {curve[-1]:.4f}, {outer.theta.numel() / 1e6:.1f} M parameters"
        )
        print(f"mean step {sum(times[2:]) / len(times[2:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
