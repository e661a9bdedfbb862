#!/usr/bin/env python
"""A tiny GPT, sharded with FSDP2."""

import argparse
import time

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=64, d=192, heads=4, layers=4):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.out = nn.Linear(d, vocab)
        self.pause = 0.0

    def forward(self, idx):
        x = self.wte(idx)
        for i, block in enumerate(self.blocks):
            if i == 2 and self.pause:
                time.sleep(self.pause)
            x = block(x)
        return self.out(x)


def get_batch(gen, batch=8, length=32):
    start = torch.randint(0, 64, (batch, 1), generator=gen)
    seq = (start + torch.arange(length + 1)) % 64  # counting, from anywhere
    return seq[:, :-1], seq[:, 1:]


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--max-iters", type=int, default=14)
    p.add_argument("--learning-rate", type=float, default=3e-3)
    p.add_argument("--fault", choices=["none", "sleeping-rank"], default="none")
    cfg = p.parse_args()

    init_process_group("gloo")
    rank = get_rank()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    torch.manual_seed(42)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if cfg.fault == "sleeping-rank" and rank == 1:
        model.pause = 0.030
    optim = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    gen = torch.Generator().manual_seed(rank)

    first = None
    for it in range(cfg.max_iters):
        x, y = get_batch(gen)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.view(-1, 64), y.reshape(-1))
        loss.backward()
        optim.step()
        optim.zero_grad()
        first = first or loss.item()
        if rank == 0:
            print(f"iter {it}: train loss {loss.item():.4f}")
    assert loss.item() < first
    destroy_process_group()
