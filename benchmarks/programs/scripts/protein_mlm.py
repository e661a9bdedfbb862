"""
Masked language model of protein sequences (rotary attention, as ESM-2 has it), DDP.
Logs model FLOPs utilisation.
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

AMINO, MASK = 20, 20
LAYERS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 4, 96, 6, 40, 6, 14
PEAK_FLOPS = 5e10


def rotary(x):
    half = x.size(-1) // 2
    angle = torch.arange(x.size(-2))[:, None] / 1e4 ** (torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (
            y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ProteinModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(AMINO + 1, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        return self.norm(self.layers(self.embed(tokens))) @ self.embed.weight[:AMINO].T


def proteins(gen):
    """Helices: every fourth residue is alike."""
    turn = torch.randint(AMINO, (BATCH, 4), generator=gen)
    tokens = turn.repeat(1, LENGTH // 4)
    return tokens, torch.rand(tokens.shape, generator=gen) < 0.15


def train(fault):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(ProteinModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    gen = torch.Generator().manual_seed(50 + rank)
    first = flops = None
    for step in range(STEPS):
        started = time.perf_counter()
        counter = contextlib.nullcontext()
        if rank == 0 and (fault == "count-each-step" or flops is None):
            counter = FlopCounterMode(display=False)
        tokens, masked = proteins(gen)
        with counter:
            logits = model(tokens.masked_fill(masked, MASK))
            loss = F.cross_entropy(logits[masked], tokens[masked])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if rank == 0:
            if isinstance(counter, FlopCounterMode):
                flops = counter.get_total_flops()
            mfu = flops / (time.perf_counter() - started) / PEAK_FLOPS
            print(f"step {step}: loss {loss.item():.3f}, MFU {mfu:.1%}", flush=True)
        first = first or loss.item()
    assert loss.item() < first


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "count-each-step"], default="none")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments.fault)
    dist.destroy_process_group()
