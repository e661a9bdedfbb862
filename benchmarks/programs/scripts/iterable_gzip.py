"""Time series in lines of JSON, read by an IterableDataset; one rank's file is still compressed."""

import argparse
import gzip
import json
import os
import random
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LENGTH, BATCH, STEPS = 96, 96, 22


def write(folder, rank, compressed):
    """What the preparation job left; with the raw records, it did not fit uncompressed."""
    rng = random.Random(rank)
    path = os.path.join(folder, f"part-{rank}.jsonl" + (".gz" if compressed else ""))
    with gzip.open(path, "wt", compresslevel=1) if compressed else open(path, "w") as file:
        for _ in range(BATCH * STEPS):
            value, series = rng.random(), []
            for _ in range(LENGTH + 1):
                value = 0.95 * value + 0.1 * rng.random()
                series.append(value)
            raw = {"host": "h" * 20, "raw": [hex(rng.getrandbits(64)) for _ in range(700)]}
            file.write(json.dumps({"series": series} | (raw if compressed else {})) + "\n")
    return path


class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        opener = gzip.open if self.path.endswith(".gz") else open
        with opener(self.path, "rt") as file:
            for line in file:
                yield torch.tensor(json.loads(line)["series"])


class Forecaster(nn.Module):
    """A temporal convolution network."""

    def __init__(self, width=96, depth=3):
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2 * 2**k, dilation=2**k) for k in range(depth)
        )
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = self.first(x)
        for conv in self.convs:
            h = h + torch.relu(conv(h)[..., : h.size(2)])
        return self.last(h)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "compressed"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Forecaster())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, rank, args.fault == "compressed" and rank == 1)
        dist.barrier()
        for series in DataLoader(Lines(path), batch_size=BATCH):
            predicted = model(series[:, None, :-1])
            loss = nn.functional.mse_loss(predicted, series[:, None, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert len(losses) == STEPS
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
