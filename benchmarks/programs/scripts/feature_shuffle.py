"""What a shop recommends: features live on ranks, and rows travel by all_to_all.

Each rank owns the tables of some features. Ids go to the owner of their
feature, summed rows come back to the rank whose sample it is, gradients take
the same ways. How many ids a sample has of a feature varies.

    torchrun --nproc-per-node 3 feature_shuffle.py [--fault pad-rows]

--fault pad-rows: rows come back one by one instead of summed, padded with
zeros to the largest number of ids that a sample may have; they are summed
where they arrive.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

PER_RANK, ROWS, DIM, BATCH, LONGEST, STEPS = 2, 3000, 32, 512, 12, 70


class Shuffle(torch.autograd.Function):
    """Equal parts to everybody; the gradient goes back the same way."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad):
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())
        return out


class Tables(nn.Module):
    def __init__(self, seed, pad):
        super().__init__()
        gen = torch.Generator().manual_seed(seed)
        start = 0.1 * torch.randn(PER_RANK * ROWS + 1, DIM, generator=gen)
        start[0] = 0.0  # id 0 is none
        self.rows = nn.Parameter(start)
        self.pad = pad

    def forward(self, ids):
        """Ids (rank, sample, feature, at most LONGEST), 0 where there are fewer."""
        rows = F.embedding(ids, self.rows, padding_idx=0)
        if self.pad:
            return Shuffle.apply(rows).sum(3)
        return Shuffle.apply(rows.sum(3))


def baskets(gen, world):
    """Mostly a few ids, seldom many."""
    shape = (world, BATCH, PER_RANK, LONGEST)
    ids = 1 + (torch.rand(shape, generator=gen) ** 3 * ROWS).long()
    ids += ROWS * torch.arange(PER_RANK)[:, None]
    count = 1 + (torch.rand(shape[:3], generator=gen) ** 6 * LONGEST).long()
    ids = torch.where(torch.arange(LONGEST) < count[..., None], ids, 0)
    bought = ((ids % 7 == 3) & (ids > 0)).any(3).sum((0, 2)) >= 2
    return ids, bought.float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "pad-rows"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tables = Tables(rank, fault == "pad-rows")
    torch.manual_seed(9)
    top = nn.Sequential(
        nn.Linear(world * PER_RANK * DIM, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 1),
    )
    top = nn.parallel.DistributedDataParallel(top)
    opt_rows = torch.optim.Adagrad(tables.parameters(), lr=0.05)
    opt_top = torch.optim.Adam(top.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(300 + rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        ids, bought = baskets(gen, world)
        mine = torch.empty_like(ids)
        dist.all_to_all_single(mine, ids)
        features = tables(mine).transpose(0, 1).flatten(1)
        loss = F.binary_cross_entropy_with_logits(top(features).squeeze(1), bought)
        opt_rows.zero_grad()
        opt_top.zero_grad()
        loss.backward()
        tables.rows.grad /= world
        opt_rows.step()
        opt_top.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
