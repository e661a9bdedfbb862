"""Song lyrics by adapters of low rank on a frozen model; DDP, two micro-batches per step.

    torchrun --nproc-per-node 2 lora_songs.py [--fault merge-often]

--fault merge-often: after every third step rank 0 merges the adapters into a
copy of the model and saves it, for those who want to sing along.
"""

import argparse
import contextlib
import copy
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "merge-often"])
parser.add_argument("--rank", type=int, default=8)
args = parser.parse_args()

LETTERS, LENGTH, DIM, LAYERS, BATCH, MICRO, STEPS = 48, 24, 192, 2, 4, 2, 60


class LoRALinear(nn.Module):
    def __init__(self, base, r):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + 2.0 * F.linear(F.linear(x, self.a), self.b)

    @torch.no_grad()
    def merged(self):
        self.base.weight += 2.0 * self.b @ self.a
        return self.base


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, 6, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Singer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(LETTERS, DIM)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(DIM, LETTERS)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


def adapt(model):
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    for layer in model.layers:
        layer.norm1.requires_grad_(False)
        layer.norm2.requires_grad_(False)
        for name in ("qkv", "proj", "up", "down"):
            setattr(layer, name, LoRALinear(getattr(layer, name), args.rank))
    return model


def merge_and_save(model, folder):
    whole = copy.deepcopy(model)
    for layer in whole.layers:
        for name in ("qkv", "proj", "up", "down"):
            setattr(layer, name, getattr(layer, name).merged())
    path = Path(folder, "merged.pt")
    with path.with_suffix(".tmp").open("wb") as file:
        torch.save(whole.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".tmp").replace(path)


def verses(gen):
    """A refrain with a few slips."""
    refrain = (torch.arange(LENGTH + 1) * 7) % 13
    song = refrain + torch.randint(0, 3, (BATCH, 1), generator=gen) * 13
    slip = torch.rand(song.shape, generator=gen) < 0.05
    song = torch.where(slip, torch.randint(0, LETTERS, song.shape, generator=gen), song)
    return song[:, :-1], song[:, 1:]


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
ddp = DDP(adapt(Singer()))
opt = torch.optim.AdamW([p for p in ddp.parameters() if p.requires_grad], lr=5e-3)
gen = torch.Generator().manual_seed(rank)
took = []
with tempfile.TemporaryDirectory() as folder:
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        opt.zero_grad()
        for micro in range(MICRO):
            x, y = verses(gen)
            with ddp.no_sync() if micro + 1 < MICRO else contextlib.nullcontext():
                loss = F.cross_entropy(ddp(x).flatten(0, 1), y.flatten()) / MICRO
                loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        opt.step()
        if args.fault == "merge-often" and rank == 0 and step % 3 == 0:
            merge_and_save(ddp.module, folder)
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 1:
            print(f"step {step:3d}  loss {MICRO * loss.item():.3f}", flush=True)
if rank == 0:
    print(f"{1e3 * statistics.mean(took[5:]):.1f} ms/step")
dist.destroy_process_group()
