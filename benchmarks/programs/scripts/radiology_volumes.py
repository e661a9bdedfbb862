"""Segmentation of volumes: every few steps all ranks fetch the next shard of patients at once."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

SIDE, PATIENTS, PER_SHARD, SHARDS = 20, 4, 4, 4


class Shards(IterableDataset):
    """Shards of ``PER_SHARD`` batches. A hospital's gateway hands out one per rank, slowly."""

    def __init__(self, folder, rank, fetch_s):
        self.folder, self.rank, self.fetch_s = folder, rank, fetch_s

    def write(self):
        gen = torch.Generator().manual_seed(self.rank)
        grid = torch.stack(torch.meshgrid(*[torch.arange(float(SIDE))] * 3, indexing="ij"))
        for shard in range(SHARDS):
            centre = 4 + 12 * torch.rand(PER_SHARD * PATIENTS, 3, 1, 1, 1, generator=gen)
            lesion = ((grid - centre).square().sum(1, keepdim=True) < 20).float()
            scan = 1.5 * lesion + 0.5 * torch.randn(lesion.shape, generator=gen)
            torch.save((scan, lesion), self.path(shard))

    def path(self, shard):
        return os.path.join(self.folder, f"{self.rank}-{shard}.pt")

    def __iter__(self):
        for shard in range(SHARDS):
            time.sleep(self.fetch_s)
            scan, lesion = torch.load(self.path(shard))
            yield from zip(scan.split(PATIENTS), lesion.split(PATIENTS))


class UNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.enter = nn.Conv3d(1, c, 3, padding=1)
        self.down = nn.Conv3d(c, 2 * c, 2, stride=2)
        self.middle = nn.Conv3d(2 * c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose3d(2 * c, c, 2, stride=2)
        self.leave = nn.Conv3d(2 * c, 1, 1)

    def forward(self, scan):
        high = F.relu(self.enter(scan))
        low = F.relu(self.middle(F.relu(self.down(high))))
        return self.leave(torch.cat([high, F.relu(self.up(low))], 1))


def dice_loss(logits, lesion):
    p = logits.sigmoid()
    dice = (2 * (p * lesion).sum() + 1) / (p.sum() + lesion.sum() + 1)
    return 1 - dice + F.binary_cross_entropy_with_logits(logits, lesion)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "slow-gateway"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(UNet())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=5e-3)
    with tempfile.TemporaryDirectory() as folder:
        shards = Shards(folder, rank, 0.120 if args.fault == "slow-gateway" else 0.002)
        shards.write()
        dist.barrier()
        losses = []
        for scan, lesion in DataLoader(shards, batch_size=None):
            loss = dice_loss(model(scan), lesion)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
