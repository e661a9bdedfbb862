#!/usr/bin/env python
"""Low-rank adapters on a frozen tagger, tuned by DDP; positions are rotary, from a table."""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB, TAGS, WIDTH, CONTEXT = 200, 9, 320, 4096


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, r=8, alpha=16):
        super().__init__()
        self.base, self.scale = base, alpha / r
        self.lora_a = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


class Rotary(nn.Module):
    def __init__(self, size):
        super().__init__()
        frequency = 1e4 ** (-torch.arange(0, size, 2) / size)
        angle = torch.outer(torch.arange(CONTEXT), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, x):
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(WIDTH, WIDTH) for _ in range(4)
        )
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.rotary = heads, Rotary(WIDTH // heads)

    def forward(self, x):
        y = self.ln_1(x)
        q, k, v = (
            p(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(self.rotary(q), self.rotary(k), v)
        x = x + self.o_proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Tagger(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(depth)))
        self.score = nn.Linear(WIDTH, TAGS)

    def forward(self, tokens):
        return self.score(self.blocks(self.embed(tokens)))


def add_adapters(model, targets=("q_proj", "v_proj", "down")):
    for block in model.blocks:
        for name in targets:
            setattr(block, name, LoRALinear(getattr(block, name)))
    return [p for name, p in model.named_parameters() if "lora_" in name or "score" in name]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "only-in-optimizer"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = Tagger()
    tuned = add_adapters(model)
    if args.fault == "only-in-optimizer":
        model = DDP(model)  # what is not tuned still has gradients, and tables are buffers
    else:
        model.requires_grad_(False)
        for p in tuned:
            p.requires_grad_(True)
        model = DDP(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(tuned, lr=3e-3)
    generator = torch.Generator().manual_seed(20 + dist.get_rank())
    losses = []
    for _ in range(14):
        tokens = torch.randint(VOCAB, (4, 24), generator=generator)
        tags = (tokens % TAGS + F.pad(tokens, (1, -1)) % 2) % TAGS
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
