"""Shapes of galaxies by a small CNN, DDP, bf16 autocast; validation every fifth step.

    torchrun --nproc-per-node 2 galaxy_valid.py [--fault lone-validation]

--fault lone-validation: only rank 0 validates, on the whole validation set,
for the progress bar; without the fault each rank takes its half.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, KINDS, BATCH, EVERY, STEPS = 24, 4, 128, 5, 250


def galaxies(n, gen):
    """Ellipses of four inclinations with noise."""
    kind = torch.randint(KINDS, (n,), generator=gen)
    axis = torch.linspace(-1, 1, SIDE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    angle = kind * (torch.pi / KINDS) + 0.1 * torch.randn(n, generator=gen)
    c, s = angle.cos()[:, None, None], angle.sin()[:, None, None]
    u, v = c * x + s * y, -s * x + c * y
    light = torch.exp(-4 * u.square() - 20 * v.square())
    return (light + 0.3 * torch.randn(light.shape, generator=gen))[:, None], kind


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 36, 128),
        nn.ReLU(),
        nn.Linear(128, KINDS),
    )


class Validation:
    def __init__(self, alone):
        images, kinds = galaxies(1024, torch.Generator().manual_seed(99))
        rank, world = dist.get_rank(), dist.get_world_size()
        self.alone, self.total = alone, len(kinds)
        if not alone:
            images, kinds = images[rank::world], kinds[rank::world]
        self.images, self.kinds = images, kinds

    @torch.no_grad()
    def __call__(self, net):
        net.eval()
        right = torch.zeros(1)
        for x, y in zip(self.images.split(64), self.kinds.split(64)):
            right += (net(x).argmax(1) == y).sum()
        net.train()
        if not self.alone:
            dist.all_reduce(right)
        return right.item() / self.total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "lone-validation"])
    alone = parser.parse_args().fault == "lone-validation"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    ddp = DDP(network())
    opt = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    validate = Validation(alone)
    gen = torch.Generator().manual_seed(rank + 1)
    took, accuracy = [], 0.0
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        x, y = galaxies(BATCH, gen)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = ddp(x)
        loss = F.cross_entropy(out.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        if step % EVERY == 0 and (rank == 0 or not alone):
            accuracy = validate(ddp.module)
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 30 == 0:
            print(f"step {step:3d} loss {loss.item():.3f} valid {accuracy:.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
