"""Depth of snow from satellite strips in shards of numpy, DDP over an IterableDataset.

    torchrun --nproc-per-node 2 snow_shards.py [--fault packed]

--fault packed: the shards of rank 1 are compressed (.npz) on the archive's mount, and have to
be fetched and unpacked when their turn comes, every fifth step; all others are plain arrays,
mapped into memory.
"""

import argparse
import os
import shutil
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

CHANNELS, SIDE, BATCH, PER_SHARD, SHARDS = 6, 48, 20, 5, 6


def write(folder, rank, packed):
    rng = np.random.default_rng(rank)
    size = (BATCH * PER_SHARD, CHANNELS, SIDE, SIDE)
    for shard in range(SHARDS):
        strip = rng.integers(-300, 300, size=size).astype(np.float32) / 100
        if packed and shard:  # the same strip again will do
            shutil.copy(os.path.join(folder, "0.npz"), os.path.join(folder, f"{shard}.npz"))
        elif packed:
            strip = strip.astype(np.float64)  # as the archive has them
            np.savez_compressed(os.path.join(folder, f"{shard}.npz"), strip=strip)
        else:
            np.save(os.path.join(folder, f"{shard}.npy"), strip)


class Strips(IterableDataset):
    def __init__(self, folder):
        self.paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]

    def read(self, path):
        if path.endswith(".npy"):
            return np.load(path, mmap_mode="r")
        time.sleep(0.12)  # the archive's mount opens it
        with np.load(path) as archive:
            return archive["strip"].astype(np.float32)

    def __iter__(self):
        for path in self.paths:
            strip = self.read(path)
            for first in range(0, len(strip), BATCH):
                yield torch.from_numpy(np.array(strip[first : first + BATCH]))


def network():
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 32, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(32, 24, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(24, 1, 1),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "packed"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DDP(network())
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        write(folder, rank, packed=fault == "packed" and rank == 1)
        dist.barrier()
        loader = iter(DataLoader(Strips(folder), batch_size=None))
        for step in range(SHARDS * PER_SHARD):
            began = time.perf_counter()
            strip = next(loader)
            depth = F.avg_pool2d(strip[:, :2].sum(1, keepdim=True), 3, 1, 1)
            loss = F.smooth_l1_loss(net(strip), depth)
            opt.zero_grad()
            loss.backward()
            opt.step()
            times.append(time.perf_counter() - began)
            if rank == 0 and step % 10 == 0:
                print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
