"""Fine-tune a small chest X-ray classifier with DistributedDataParallel.

Every rank owns a directory of pre-resized radiographs (one raw file per image,
uint8, 48x48) and trains on nothing but its own directory.  4 ranks.

    torchrun --nproc-per-node 4 cxr_finetune.py [--fault nfs_shard]

--fault nfs_shard: the directories of ranks 2 and 3 sit on a network mount where
each open() takes a couple of milliseconds (emulated by a sleep in the file
reader), while ranks 0 and 1 read from local scratch.
"""

import argparse
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

SIDE = 48
N_FILES = 96
BATCH = 16
NFS_OPEN_LATENCY = 0.0024


def write_shard(root, rank):
    gen = torch.Generator().manual_seed(100 + rank)
    os.makedirs(root, exist_ok=True)
    for i in range(N_FILES):
        label = i % 3
        img = torch.randint(0, 90, (SIDE, SIDE), generator=gen)
        # every class has a bright band somewhere else
        img[8 + 12 * label : 16 + 12 * label, 6:42] += 110
        with open(os.path.join(root, f"{i:05d}_{label}.raw"), "wb") as f:
            f.write(bytes(img.to(torch.uint8).flatten().tolist()))


class RadiographFolder(Dataset):
    def __init__(self, root, open_latency=0.0):
        self.root = root
        self.names = sorted(os.listdir(root))
        self.open_latency = open_latency

    def __len__(self):
        return len(self.names)

    def read(self, name):
        if self.open_latency:
            time.sleep(self.open_latency)
        with open(os.path.join(self.root, name), "rb") as f:
            return bytearray(f.read())

    def __getitem__(self, i):
        name = self.names[i]
        x = torch.frombuffer(self.read(name), dtype=torch.uint8).view(1, SIDE, SIDE)
        y = int(name.rsplit("_", 1)[1].split(".")[0])
        return x.float().div_(255.0).sub_(0.4), y


def build_model():
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 96),
        nn.ReLU(),
        nn.Linear(96, 3),
    )


def endless(loader):
    while True:
        yield from loader


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "nfs_shard"])
    ap.add_argument("--steps", type=int, default=25)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    root = tempfile.mkdtemp(prefix=f"cxr_r{rank}_")
    write_shard(root, rank)
    latency = NFS_OPEN_LATENCY if args.fault == "nfs_shard" and rank >= 2 else 0.0
    loader = DataLoader(
        RadiographFolder(root, latency),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(rank),
    )
    model = DDP(build_model())
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

    losses, times = [], []
    batches = endless(loader)
    dist.barrier()
    for step in range(args.steps):
        t0 = time.perf_counter()
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - t0)

    shutil.rmtree(root)
    if rank == 0:
        first, last = losses[0], sum(losses[-4:]) / 4
        assert last < first, (first, last)
        print(f"loss {first:.3f} -> {last:.3f} on {world} ranks")
        print(f"mean step {1000 * sum(times[2:]) / len(times[2:]):.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
