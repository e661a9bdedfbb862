"""Masked-monomer language model over polymer strings, sharded by FSDP2.

torchrun --nproc-per-node 2 polymer_fsdp2.py [--fault wrap-leaves]
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
parser.add_argument("--fault", default="none", choices=["none", "wrap-leaves"])
FAULT = parser.parse_args().fault
VOCAB, DIM, HEADS, DEPTH, LENGTH, BATCH, STEPS = 96, 96, 4, 3, 48, 8, 62
MASK = VOCAB - 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.q, self.k, self.v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.proj = nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).view(b, t, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class PolymerLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model, mesh):
    if FAULT == "wrap-leaves":
        for module in list(model.modules()):
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                fully_shard(module, mesh=mesh)
    else:
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def polymers(gen):
    """Repeat units with a few defects."""
    unit = torch.randint(0, VOCAB - 1, (BATCH, 8), generator=gen)
    chain = unit.repeat(1, LENGTH // 8)
    defect = torch.rand(chain.shape, generator=gen) < 0.05
    return torch.where(defect, torch.randint(0, VOCAB - 1, chain.shape, generator=gen), chain)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = shard(PolymerLM(), mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(50 + rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        clean = polymers(gen)
        hidden = torch.rand(clean.shape, generator=gen) < 0.15
        logits = model(clean.masked_fill(hidden, MASK))
        loss = F.cross_entropy(logits[hidden], clean[hidden])
        loss.backward()
        opt.step()
        opt.zero_grad()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
