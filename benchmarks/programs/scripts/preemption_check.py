"""Spot instances announce their end in a file; every step all agree on whether to save and leave."""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn


class Notice:
    """Asks whether the file is there; over the network that takes time."""

    def __init__(self, folder, latency):
        self.path, self.latency = os.path.join(folder, "preempted"), latency

    def given(self):
        time.sleep(self.latency)
        return os.path.exists(self.path)


class UNet(nn.Module):
    """Segments blobs; two scales."""

    def __init__(self, width=24):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
        )  # fmt: skip
        self.out = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        h = self.down(x)
        return self.out(torch.cat((h, self.deep(h)), 1))


def blobs(n, generator):
    coarse = torch.randn(n, 1, 6, 6, generator=generator)
    smooth = nn.functional.interpolate(coarse, 48, mode="bilinear")
    return smooth + 0.3 * torch.randn(n, 1, 48, 48, generator=generator), (smooth > 0).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "slow-mount"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = args.fault == "slow-mount" and rank == 2
    notice = Notice(tempfile.gettempdir(), 0.012 if slow else 0.0)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(UNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(22):
        image, mask = blobs(10, generator)
        loss = nn.functional.binary_cross_entropy_with_logits(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        leave = torch.tensor([float(notice.given())])
        dist.all_reduce(leave, op=dist.ReduceOp.MAX)
        if leave.item():
            break
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
