"""Toxicity of molecules from fingerprints: a deep residual MLP with DDP.

torchrun --nproc-per-node 2 tox_norms.py [--fault param-stats]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "param-stats"])
FAULT = parser.parse_args().fault
BITS, WIDTH, DEPTH, ASSAYS, BATCH, STEPS = 1024, 192, 16, 12, 128, 90


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.relu(self.fc(self.norm(x)))


class ToxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(BITS, WIDTH)
        self.body = nn.Sequential(*[Residual() for _ in range(DEPTH)])
        self.out = nn.Linear(WIDTH, ASSAYS)

    def forward(self, x):
        return self.out(self.body(self.inp(x)))


class Monitor:
    """Remembers gradient statistics of the whole job, for the dashboard."""

    def __init__(self, model, world):
        self.model, self.world, self.history = model, world, []

    def cheap(self):
        # DDP has averaged the gradients: every rank holds the same ones
        norms = torch._foreach_norm([p.grad for p in self.model.parameters()])
        self.history.append({"total": torch.stack(norms).norm().item()})

    def thorough(self):
        row = {}
        for name, p in self.model.named_parameters():
            norm = p.grad.norm()
            dist.all_reduce(norm)
            row[name + "/norm"] = norm.item() / self.world
            top = p.grad.abs().max()
            dist.all_reduce(top, op=dist.ReduceOp.MAX)
            row[name + "/max"] = top.item()
        self.history.append(row)


def fingerprints(gen, rules):
    x = (torch.rand(BATCH, BITS, generator=gen) < 0.06).float()
    y = (x @ rules > 0).float()
    return x, y


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = ToxNet()
    rules = torch.randn(BITS, ASSAYS)
    ddp = DDP(model)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    monitor = Monitor(model, world)
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        x, y = fingerprints(gen, rules)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.binary_cross_entropy_with_logits(ddp(x), y)
        loss.backward()
        if FAULT == "param-stats":
            monitor.thorough()
        else:
            monitor.cheap()
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 30 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
