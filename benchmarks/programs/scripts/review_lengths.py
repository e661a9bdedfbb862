"""Sentiment classifier (small transformer) on reviews of very different lengths, DDP.

    torchrun --nproc-per-node 2 review_lengths.py [--fault own_shuffle]

Batches hold reviews of about equal length, and both ranks own batches of the same lengths.
Normally both go through them in the same shuffled order of lengths.  --fault own_shuffle lets
each rank shuffle with its own seed: in most steps one rank has a long batch and the other a
short one, now this rank, now that, though both do the same work over the epoch.
"""

import argparse
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

VOCAB, DIM, BATCH = 800, 96, 8
LENGTHS = [24, 32, 48, 200, 240]


class ReviewBatches(Dataset):
    """Item i is a whole batch; its length depends on i only, its content also on the rank."""

    def __init__(self, n, rank):
        self.n, self.rank = n, rank

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(7000 + 2 * i + self.rank)
        t = LENGTHS[i % len(LENGTHS)]
        y = torch.randint(0, 2, (BATCH,), generator=g)
        ids = torch.randint(0, VOCAB, (BATCH, t), generator=g)
        mood = torch.randint(0, 40, (BATCH, t), generator=g) + 40 * y[:, None]
        use = torch.rand(BATCH, t, generator=g) < 0.3
        return torch.where(use, mood, ids), y


class SeededOrder(torch.utils.data.Sampler):
    def __init__(self, n, seed):
        self.order = list(range(n))
        random.Random(seed).shuffle(self.order)

    def __iter__(self):
        return iter(self.order)

    def __len__(self):
        return len(self.order)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, DIM // 4).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, DIM))
        return x + self.ff(self.n2(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.body = nn.Sequential(Layer(), Layer())
        self.head = nn.Linear(DIM, 2)

    def forward(self, ids):
        return self.head(self.body(self.emb(ids)).mean(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "own_shuffle"])
    ap.add_argument("--steps", type=int, default=30)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    seed = 5 + rank if args.fault == "own_shuffle" else 5
    loader = DataLoader(
        ReviewBatches(args.steps, rank), batch_size=None, sampler=SeededOrder(args.steps, seed)
    )
    model = DDP(Classifier())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    model(torch.zeros(2, 24, dtype=torch.long)).sum().backward()  # warm up
    opt.zero_grad()
    dist.barrier()
    begin = time.perf_counter()
    for ids, y in loader:
        loss = F.cross_entropy(model(ids), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    dist.barrier()
    total = time.perf_counter() - begin
    if rank == 0:
        assert sum(losses[-8:]) < sum(losses[:8])
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"mean step {total / args.steps * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
