"""Vessels on retina patches: DDP, bf16 autocast, an optimizer wrapper with EMA.

    torchrun --nproc-per-node 2 retina_ema.py [--fault barriers]

--fault barriers: "to be safe" there is a barrier before the forward pass and
one after the optimizer.
"""

import argparse
import copy
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIDE, BATCH, STEPS = 56, 10, 200


class WithAverage:
    """Wraps an optimizer; keeps a moving average of the weights; warms up."""

    def __init__(self, optimizer, module, decay=0.99, warmup=20):
        self.optimizer, self.module, self.decay, self.warmup = optimizer, module, decay, warmup
        self.average = copy.deepcopy(module).requires_grad_(False)
        self.count = 0
        self.base = [g["lr"] for g in optimizer.param_groups]

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self):
        self.count += 1
        for group, lr in zip(self.optimizer.param_groups, self.base):
            group["lr"] = lr * min(1.0, self.count / self.warmup)
        self.optimizer.step()
        torch._foreach_lerp_(
            list(self.average.parameters()), list(self.module.parameters()), 1 - self.decay
        )


class UNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        self.a = nn.Sequential(
            nn.Conv2d(1, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU()
        )
        self.b = nn.Sequential(
            nn.Conv2d(w, 2 * w, 3, padding=1), nn.ReLU(), nn.Conv2d(2 * w, w, 3, padding=1)
        )
        self.c = nn.Conv2d(2 * w, 1, 3, padding=1)

    def forward(self, x):
        fine = self.a(x)
        coarse = self.b(F.avg_pool2d(fine, 2))
        return self.c(torch.cat([fine, F.interpolate(coarse, scale_factor=2)], 1)).squeeze(1)


def patches(rank):
    gen = torch.Generator().manual_seed(rank)
    axis = torch.linspace(-1, 1, SIDE)
    while True:
        p = torch.randn(BATCH, 4, generator=gen)
        curve = p[:, 0:1] * axis + 0.3 * torch.sin(5 * axis + p[:, 1:2])
        vessel = ((axis[None, :, None] - curve[:, None, :]).abs() < 0.06).float()
        image = 0.5 - 0.3 * vessel + 0.2 * torch.randn(BATCH, SIDE, SIDE, generator=gen)
        yield image[:, None], vessel


def train(fault):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(UNet())
    optimizer = WithAverage(torch.optim.AdamW(model.parameters(), lr=3e-3), model.module)
    took, data = [], patches(rank)
    for step in range(STEPS):
        began = time.perf_counter()
        image, vessel = next(data)
        if fault == "barriers":
            dist.barrier()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(image)
        loss = F.binary_cross_entropy_with_logits(logits.float(), vessel)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fault == "barriers":
            dist.barrier()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 30 == 0:
            print(f"step {step:3d} bce {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "barriers"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(fault)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
