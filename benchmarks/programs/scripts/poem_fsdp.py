"""A model of verse, FSDP2.

    torchrun --nproc-per-node 2 poem_fsdp.py [--fault full-norms]

--fault full-norms: for a table of norms by parameter every gradient is gathered in full
in each step, although the squares of the shards could be added up.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SIGNS, WIDTH, LENGTH, BATCH, STEPS = 96, 192, 64, 12, 22


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.one(x)).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, WIDTH))
        return x + self.down(F.gelu(self.up(self.two(x))))


class Poet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SIGNS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, SIGNS)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1).clone()


def verse(gen):
    """Lines that rhyme: a motif, repeated."""
    motif = torch.randint(SIGNS, (BATCH, 8), generator=gen)
    text = motif.repeat(1, LENGTH // 8 + 1)[:, : LENGTH + 1]
    return text[:, :-1], text[:, 1:]


def table_of_norms(model):
    table = {}
    for name, p in model.named_parameters():
        table[name] = p.grad.full_tensor().norm().item()
    return table


def gradient_norm(model):
    square = sum(p.grad.to_local().square().sum() for p in model.parameters()).reshape(1)
    dist.all_reduce(square)
    return square.sqrt().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "full-norms"])
    full = parser.parse_args().fault == "full-norms"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Poet()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        text, coming = verse(gen)
        loss = F.cross_entropy(model(text), coming.flatten())
        opt.zero_grad()
        loss.backward()
        if full:
            norms = table_of_norms(model)
            norm = sum(g * g for g in norms.values()) ** 0.5
        else:
            norm = gradient_norm(model)
        opt.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.3f} norm {norm:.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
