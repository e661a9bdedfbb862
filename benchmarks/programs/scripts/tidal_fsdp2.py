"""Tide gauges forecast by a transformer under FSDP2, with an average of the weights.

The exponential moving average is sharded as the weights are: each rank
averages its own shards.

    torchrun --nproc-per-node 2 tidal_fsdp2.py [--fault whole-average]

--fault whole-average: every rank averages whole weights, for which it gathers
each of them in every step.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "whole-average"])
FAULT = parser.parse_args().fault
GAUGES, HOURS, DIM, HEADS, DEPTH, BATCH, STEPS = 12, 24, 256, 4, 3, 3, 60
DECAY = 0.99


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(DIM, bias=False)
        self.ln2 = nn.LayerNorm(DIM, bias=False)
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)
        self.up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(4 * DIM, DIM, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(GAUGES, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.leave = nn.Linear(DIM, GAUGES)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x)


def tides(gen):
    t = torch.arange(HOURS + 1) + 5000 * torch.rand(BATCH, 1, 1, generator=gen)
    phase = torch.arange(GAUGES).view(1, -1, 1) * 0.4
    level = torch.sin(t * 0.506 + phase) + 0.3 * torch.sin(t * 0.262 + 2 * phase)
    level = level + 0.1 * torch.randn(level.shape, generator=gen)
    return level.transpose(1, 2)


class Average:
    def __init__(self, model):
        self.model = model
        self.kept = [self.of(p).clone() for p in model.parameters()]

    @staticmethod
    def of(parameter):
        p = parameter.detach()
        return p.full_tensor() if FAULT == "whole-average" else p.to_local()

    @torch.no_grad()
    def update(self):
        for kept, p in zip(self.kept, self.model.parameters()):
            kept.lerp_(self.of(p), 1 - DECAY)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Forecaster()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4)
    average = Average(model)
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        level = tides(gen)
        loss = F.mse_loss(model(level[:, :-1]), level[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
