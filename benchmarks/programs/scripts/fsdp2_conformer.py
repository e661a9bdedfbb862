"""A small conformer that recognises phones, sharded by FSDP2; somebody had looked for a NaN.

What each rank prints of its weights comes from its own shards. The line that had been put in
for debugging puts every weight together first.
"""

import argparse
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

DIM, PHONES, FRAMES = 192, 32, 48


class Conformer(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.deep = nn.Conv1d(DIM, DIM, 7, padding=3, groups=DIM)
        self.point = nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        batch, frames, _ = x.shape
        qkv = self.qkv(self.norms[0](x)).view(batch, frames, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        near = self.deep(self.norms[1](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.point(F.silu(near))
        return x + self.down(F.silu(self.up(self.norms[2](x))))


class Recogniser(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.first = nn.Linear(40, DIM)
        self.blocks = nn.Sequential(*(Conformer() for _ in range(depth)))
        self.head = nn.Linear(DIM, PHONES)

    def forward(self, x):
        return self.head(self.blocks(self.first(x)))


def describe_shards(model, file):
    """What this rank holds, in a line for each weight."""
    for name, p in model.named_parameters():
        local = p.to_local()
        if local.numel():
            print(name, f"{local.detach().abs().max():.3g}", file=file)


def describe_weights(model, file):
    for name, p in model.named_parameters():
        full = p.detach().full_tensor()
        print(name, tuple(full.shape), f"{full.abs().max():.3g}", file=file)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "debug-print"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Recogniser()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sounds = torch.randn(PHONES, 40, generator=torch.Generator().manual_seed(2))
    gen = torch.Generator().manual_seed(5 + rank)
    describe = describe_weights if args.fault == "debug-print" else describe_shards
    losses, times = [], []
    with open(os.devnull, "w") as file:
        for _ in range(args.steps):
            before = time.perf_counter()
            phones = torch.randint(PHONES, (8, FRAMES // 4), generator=gen).repeat_interleave(4, 1)
            heard = sounds[phones] + torch.randn(8, FRAMES, 40, generator=gen)
            loss = F.cross_entropy(model(heard).flatten(0, 1), phones.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            describe(model, file)
            losses.append(loss.item())
            times.append(time.perf_counter() - before)
    assert losses[-1] < 0.7 * losses[0] < 2 * math.log(PHONES), losses
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
