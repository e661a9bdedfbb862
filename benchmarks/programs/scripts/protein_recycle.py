"""Contacts of amino acids from a pair representation, recycled three times, under fully_shard.

All recycles but the last run without gradients, as in AlphaFold.

    torchrun --nproc-per-node 2 protein_recycle.py [--fault reshard]

--fault reshard: blocks throw their gathered parameters away after every
forward, as fully_shard does unless it is told otherwise, so that each recycle
gathers all of them again.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["none", "reshard"], default="none")
args = ap.parse_args()

RESIDUES, KINDS, PAIR, DEPTH, RECYCLES, STEPS = 10, 20, 96, 3, 3, 60


class Triangle(nn.Module):
    """Multiplicative update over outgoing edges."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.left, self.right, self.gate, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, pair):
        z = self.norm(pair)
        edges = torch.einsum("bikc,bjkc->bijc", self.left(z), self.right(z)) / RESIDUES**0.5
        return pair + torch.sigmoid(self.gate(z)) * self.out(self.norm_out(edges))


class PairBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.triangle = Triangle(dim)
        self.transition = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, pair):
        pair = self.triangle(pair)
        return pair + self.transition(pair)


class Folder(nn.Module):
    def __init__(self):
        super().__init__()
        self.row, self.column = nn.Embedding(KINDS, PAIR), nn.Embedding(KINDS, PAIR)
        self.recycled = nn.LayerNorm(PAIR)
        self.blocks = nn.ModuleList(PairBlock(PAIR) for _ in range(DEPTH))
        self.head = nn.Linear(PAIR, 1)

    def forward(self, residues, before):
        pair = self.row(residues)[:, :, None] + self.column(residues)[:, None]
        if before is not None:
            pair = pair + self.recycled(before)
        for block in self.blocks:
            pair = block(pair)
        return self.head(pair).sum(-1), pair


def chains(seed):
    """Residues touch where their kinds attract each other."""
    generator = torch.Generator().manual_seed(seed)
    attraction = torch.randn(KINDS, KINDS, generator=torch.Generator().manual_seed(99))
    attraction = attraction + attraction.T
    while True:
        residues = torch.randint(KINDS, (2, RESIDUES), generator=generator)
        contact = attraction[residues[:, :, None], residues[:, None]] > 0.5
        yield residues, contact.float()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(5)
    model = Folder()
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=args.fault == "reshard")
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = chains(rank)
    durations = []
    for step in range(STEPS):
        begin = time.perf_counter()
        residues, contact = next(data)
        pair = None
        with torch.no_grad():
            for _ in range(RECYCLES):
                _, pair = model(residues, pair)
        logits, _ = model(residues, pair)
        loss = F.binary_cross_entropy_with_logits(logits, contact)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        durations.append(time.perf_counter() - begin)
        if rank == 0 and step % 15 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(durations[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
