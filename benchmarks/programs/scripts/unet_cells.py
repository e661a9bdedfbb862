"""A U-Net that outlines cells, under DDP; activations may be recomputed, on every rank alike.

Recomputing saves memory and costs time that no rank loses to another: there is nothing to say
about the communication of such a run.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Twice(nn.Module):
    def __init__(self, into, out):
        super().__init__()
        self.first = nn.Conv2d(into, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.norm = nn.GroupNorm(4, out)

    def forward(self, x):
        return F.relu(self.norm(self.second(F.relu(self.first(x)))))


class UNet(nn.Module):
    def __init__(self, width=12, recompute=False):
        super().__init__()
        self.recompute = recompute
        sizes = [1, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.up = nn.ModuleList([Twice(6 * width, 2 * width), Twice(3 * width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def run(self, block, x):
        return checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)

    def forward(self, x):
        kept = []
        for i, block in enumerate(self.down):
            x = self.run(block, F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for block, beside in zip(self.up, kept[-2::-1], strict=True):
            x = self.run(block, torch.cat([F.interpolate(x, scale_factor=2), beside], 1))
        return self.out(x)


def make(gen, batch, side=48):
    """Bright discs before a noisy background, and where they are."""
    grid = torch.arange(side).float()
    at = side * torch.rand(batch, 6, 2, 1, 1, generator=gen)
    far = (grid[:, None] - at[:, :, 0]).square() + (grid - at[:, :, 1]).square()
    inside = (far.min(1).values < 25).float()[:, None]
    return inside + torch.randn(batch, 1, side, side, generator=gen), inside


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--fault", choices=["none", "recompute-all"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = UNet(recompute=args.fault == "recompute-all")
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    gen = torch.Generator().manual_seed(90 + rank)
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        pictures, inside = make(gen, args.batch)
        loss = F.binary_cross_entropy_with_logits(ddp(pictures), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - before)
    assert losses[-1] < 0.7 * losses[0], losses
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
