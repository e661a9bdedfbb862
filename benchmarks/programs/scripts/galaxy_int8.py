"""Shapes of galaxies under DDP, with a communication hook that sends gradients as int8.

    torchrun --nproc-per-node 3 galaxy_int8.py [--fault sorted-scale]

--fault sorted-scale: rank 1 was started with an older version of the hook,
which finds the scale of a bucket by sorting it rather than by its maximum.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "sorted-scale"])
FAULT = parser.parse_args().fault
SIDE, WIDTH, BATCH, STEPS = 32, 24, 16, 60


class Galaxies(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * WIDTH, 192),
            nn.ReLU(),
        )
        self.head = nn.Linear(192, 2)

    def forward(self, x):
        return self.head(self.body(x))


def scale_of(grad, rank):
    if FAULT == "sorted-scale" and rank == 1:
        sizes = grad.abs().sort().values
        return sizes[int(0.9999 * (len(sizes) - 1))]
    return grad.abs().max()


def int8_hook(group, bucket):
    grad, world = bucket.buffer(), dist.get_world_size()
    scale = (scale_of(grad, dist.get_rank()) / 127).clamp(min=1e-12)
    small = (grad / scale).round().clamp(-127, 127).to(torch.int8)
    message = torch.cat([small, scale.view(1).view(torch.int8)])
    parts = [torch.empty_like(message) for _ in range(world)]

    def add(future):
        future.value()
        grad.zero_()
        for part in parts:
            grad.add_(part[:-4].float() * part[-4:].clone().view(torch.float32), alpha=1 / world)
        return grad

    return dist.all_gather(parts, message, group=group, async_op=True).get_future().then(add)


def galaxies(gen):
    """Ellipses; their two shears are the answer."""
    shear = 0.5 * (torch.rand(BATCH, 2, generator=gen) - 0.5)
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    a, b = shear[:, 0, None, None], shear[:, 1, None, None]
    r2 = ((1 - a) * x - b * y) ** 2 + ((1 + a) * y - b * x) ** 2
    image = torch.exp(-6 * r2) + 0.1 * torch.randn(r2.shape, generator=gen)
    return image.unsqueeze(1), shear


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Galaxies())
    model.register_comm_hook(dist.group.WORLD, int8_hook)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        image, shear = galaxies(gen)
        loss = F.mse_loss(model(image), shear)
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
