"""Pretrain a small GPT with FSDP2 (fully_shard) and gradient accumulation.

Every optimizer step is made of four micro-batches.

    torchrun --nproc-per-node 2 gpt_fsdp2.py [--fault reduce_every_micro]

Gradients are normally reduce-scattered once per step, with the last micro-batch
(set_requires_gradient_sync).  --fault reduce_every_micro forgets that call, so that
each of the four backward passes reduces all gradients.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import record_function

VOCAB, DIM, HEADS, LAYERS, CTX = 512, 128, 4, 3, 32
MICRO, ACCUM = 1, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.proj = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn = Attention()
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(CTX, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class Corpus:
    """A noisy Markov chain over the vocabulary."""

    def __init__(self, rank):
        g = torch.Generator().manual_seed(0)
        self.next = torch.randperm(VOCAB, generator=g)
        self.g = torch.Generator().manual_seed(10 + rank)

    def batch(self):
        ids = torch.randint(0, VOCAB, (MICRO, CTX + 1), generator=self.g)
        keep = torch.rand(MICRO, CTX + 1, generator=self.g) < 0.9
        for t in range(1, CTX + 1):
            ids[:, t] = torch.where(keep[:, t], self.next[ids[:, t - 1]], ids[:, t])
        return ids[:, :-1], ids[:, 1:]


def lr_at(step, peak=3e-3, warmup=5, total=30):
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "reduce_every_micro"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = GPT()
    for blk in model.blocks:
        fully_shard(blk, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    corpus = Corpus(rank)

    losses, took = [], []
    for step in range(27):
        t0 = time.perf_counter()
        for group in opt.param_groups:
            group["lr"] = lr_at(step)
        total = 0.0
        for micro in range(ACCUM):
            if args.fault == "none":
                model.set_requires_gradient_sync(micro == ACCUM - 1)
            x, y = corpus.batch()
            with record_function("micro_batch"):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / ACCUM
                loss.backward()
            total += loss.item()
        with record_function("optimizer"):
            opt.step()
            opt.zero_grad()
        losses.append(total)
        took.append(time.perf_counter() - t0)
    if rank == 0:
        assert sum(losses[-3:]) < sum(losses[:3])
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"mean step {1e3 * sum(took[2:]) / len(took[2:]):.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
