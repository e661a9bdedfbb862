"""Melody language model with rotary attention, DDP.

torchrun --nproc-per-node 2 rotary_heads.py [--fault head-loop]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "head-loop"])
FAULT = parser.parse_args().fault
NOTES, DIM, HEADS, DEPTH, LENGTH, BATCH, STEPS = 64, 64, 4, 2, 48, 10, 80


def rotate(x):
    """Rotary position embedding on (..., time, head dim)."""
    t, d = x.shape[-2:]
    freq = 100.0 ** (-torch.arange(0, d, 2) / d)
    angle = torch.arange(t).view(-1, 1) * freq
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def attend(q, k, v):
    return F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)


def attend_by_head(q, k, v):
    """The same, written out to follow the paper."""
    out = []
    for b in range(q.shape[0]):
        heads = []
        for h in range(q.shape[1]):
            qh, kh, vh = rotate(q[b, h]), rotate(k[b, h]), v[b, h]
            score = qh @ kh.T / q.shape[-1] ** 0.5
            score = score.masked_fill(torch.ones_like(score).triu(1).bool(), float("-inf"))
            heads.append(torch.softmax(score, dim=-1) @ vh)
        out.append(torch.stack(heads))
    return torch.stack(out)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.attend = attend_by_head if FAULT == "head-loop" else attend

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).reshape(b, t, DIM))
        return x + self.mlp(self.ln2(x))


class MelodyLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(NOTES, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.head = nn.Linear(DIM, NOTES)

    def forward(self, notes):
        return self.head(self.blocks(self.emb(notes)))


def melodies(gen):
    """Arpeggios that climb by a fixed interval, with slips."""
    first = torch.randint(NOTES, (BATCH, 1), generator=gen)
    interval = torch.randint(1, 8, (BATCH, 1), generator=gen)
    notes = (first + interval * torch.arange(LENGTH + 1)) % NOTES
    slip = torch.rand(notes.shape, generator=gen) < 0.03
    return torch.where(slip, torch.randint(NOTES, notes.shape, generator=gen), notes)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(MelodyLM())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        notes = melodies(gen)
        logits = model(notes[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), notes[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
