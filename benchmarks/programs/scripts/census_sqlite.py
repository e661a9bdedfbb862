"""Incomes from a census kept in SQLite, DDP.

    torchrun --nproc-per-node 2 census_sqlite.py [--fault no-index]

--fault no-index: the table lacks its index, and every rank's query for a block of
households reads the whole table.
"""

import argparse
import os
import sqlite3
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

BLOCKS, PER_BLOCK, FEATURES, STEPS = 64, 600, 8, 28


def write(path, index):
    """Each rank has its own copy, as on its own host."""
    rng = np.random.default_rng(dist.get_rank())
    rows = rng.normal(size=(BLOCKS * PER_BLOCK, FEATURES)).round(3)
    block = rng.permutation(np.arange(len(rows)) % BLOCKS)
    columns = ", ".join(f"f{i} real" for i in range(FEATURES))
    with sqlite3.connect(path) as db:
        db.execute(f"create table household (block integer, {columns})")
        marks = ", ".join("?" * (FEATURES + 1))
        lines = ((int(b), *map(float, r)) for b, r in zip(block, rows))
        db.executemany(f"insert into household values ({marks})", lines)
        if index:
            names = ", ".join(f"f{i}" for i in range(FEATURES))
            db.execute(f"create index by_block on household (block, {names})")


class Census(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        db = sqlite3.connect(self.path)
        names = ", ".join(f"f{i}" for i in range(FEATURES))
        for step in range(STEPS):
            query = f"select {names} from household where block = ?"
            yield torch.tensor(db.execute(query, (step % BLOCKS,)).fetchall())
        db.close()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, 512),
            nn.SiLU(),
            nn.Linear(512, 768),
            nn.SiLU(),
            nn.Linear(768, 256),
            nn.SiLU(),
        )
        self.mean, self.spread = nn.Linear(256, 1), nn.Linear(256, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h).squeeze(1), F.softplus(self.spread(h)).squeeze(1) + 0.01


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "no-index"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "census.db")
        write(path, index=args.fault != "no-index")
        dist.barrier()
        began = time.perf_counter()
        for step, rows in enumerate(DataLoader(Census(path), batch_size=None)):
            income = rows[:, 0] * rows[:, 1] + rows[:, 2]
            mean, spread = model(rows)
            loss = F.gaussian_nll_loss(mean, income, spread)
            opt.zero_grad()
            loss.backward()
            opt.step()
            now = time.perf_counter()
            times.append(now - began)
            began = now
            if rank == 0 and step % 7 == 0:
                print(f"step {step:3d} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
