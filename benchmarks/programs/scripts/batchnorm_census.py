"""A deep separable network for leaves, under DDP; batch norms see their own rank's pictures.

After each step the running means and variances are averaged, as one tensor; a loop over the
model's buffers does the same.
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

SPECIES = 8


class Separable(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.deep = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.point = nn.Conv2d(width, width, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x):
        return x + self.norms[1](self.point(F.relu(self.norms[0](self.deep(x)))))


class Leaves(nn.Module):
    def __init__(self, width=24, depth=5):
        super().__init__()
        self.first = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.Sequential(*(Separable(width) for _ in range(depth)))
        self.head = nn.Linear(width, SPECIES)

    def forward(self, x):
        return self.head(self.blocks(self.first(x)).mean((2, 3)))


def statistics_of(model):
    return [b for b in model.buffers() if b.is_floating_point()]


def average_at_once(model):
    buffers = statistics_of(model)
    flat = torch.cat([b.flatten() for b in buffers]) / dist.get_world_size()
    dist.all_reduce(flat)
    for b, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        b.copy_(mean.view_as(b))


def average_each(model):
    for b in statistics_of(model):
        b /= dist.get_world_size()
        dist.all_reduce(b)


def make(gen, shapes, batch):
    species = torch.randint(SPECIES, (batch,), generator=gen)
    light = torch.rand(batch, 1, 1, 1, generator=gen) + 0.5
    return light * shapes[species] + torch.randn(batch, 3, 32, 32, generator=gen) / 3, species


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--fault", choices=["none", "each-buffer"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Leaves()
    ddp = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    shapes = torch.randn(SPECIES, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(20 + rank)
    average = average_each if args.fault == "each-buffer" else average_at_once
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        pictures, species = make(gen, shapes, args.batch)
        loss = F.cross_entropy(ddp(pictures), species)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            average(model)
        losses.append(loss.item())
        times.append(time.perf_counter() - before)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3]), losses
    mine = torch.cat([b.flatten() for b in statistics_of(model)]).sum().view(1)
    both = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(both, mine)
    assert torch.allclose(both[0], both[1]), both
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
