"""Scores news for readers: embedding tables are in bfloat16, each on one rank, towers on both.

Each rank looks up in its own tables what all readers need, and these vectors change hands. The
tower computes in float32: the vectors become so once they have arrived, or before they are sent.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

TABLES, ENTRIES, DIM = 24, 20000, 64


class Tables:
    """The tables of this rank; a bag of an entry or two of each for every reader."""

    def __init__(self, rank, world):
        self.mine = range(rank, TABLES, world)
        self.weights = [self.weight(t) for t in self.mine]

    @staticmethod
    def weight(table):
        gen = torch.Generator().manual_seed(table)
        return torch.randn(ENTRIES, DIM, generator=gen).bfloat16()

    def look_up(self, ids):
        """Of readers x tables; vectors of tables x dimensions for each reader."""
        rows = [w.index_select(0, ids[:, t]) for t, w in zip(self.mine, self.weights, strict=True)]
        return torch.stack(rows, 1)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(DIM, 4)
        self.out = nn.Sequential(nn.Linear(4 * TABLES, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, vectors):
        return self.out(self.mix(vectors).flatten(1))[:, 0]


def exchange(found, world):
    """Of my tables for all readers, all tables for my readers: ranks x readers x tables x dim."""
    mine = torch.empty_like(found)
    dist.all_to_all_single(mine, found)
    return mine.unflatten(0, (world, -1))


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--readers", type=int, default=8192, help="in all")
    parser.add_argument("--fault", choices=["none", "early-float"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    tables, tower = Tables(rank, world), Tower().eval()
    share = args.readers // world
    gen = torch.Generator().manual_seed(60)  # requests are known to all
    best, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        ids = torch.randint(ENTRIES, (args.readers, TABLES), generator=gen)
        found = tables.look_up(ids)
        if args.fault == "early-float":
            found = found.float()
        parts = exchange(found, world)
        vectors = parts.permute(1, 2, 0, 3).flatten(1, 2).float()  # in the order of the tables
        scores = tower(vectors)
        best.append(scores.max())
        times.append(time.perf_counter() - before)
    few = ids[rank * share : rank * share + 8]
    whole = torch.stack([Tables.weight(t)[few[:, t]] for t in range(TABLES)], 1).float()
    assert torch.allclose(tower(whole), scores[:8], atol=1e-5), (tower(whole), scores[:8])
    top = torch.stack(best).max()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
