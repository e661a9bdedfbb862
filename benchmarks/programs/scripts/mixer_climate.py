"""An MLP-mixer that predicts the next hour of a climate model's field, under DDP.

``throttled`` stands for a host whose fan has failed: at a third of the clock, a matrix takes as
long as if it were multiplied several times.
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

SIDE, PATCH, DIM = 48, 6, 160
TOKENS = (SIDE // PATCH) ** 2


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.across = nn.Sequential(nn.Linear(TOKENS, 96), nn.GELU(), nn.Linear(96, TOKENS))
        self.within = nn.Sequential(nn.Linear(DIM, 320), nn.GELU(), nn.Linear(320, DIM))

    def forward(self, x):
        x = x + self.across(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norms[1](x))


class Forecast(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.into = nn.Linear(PATCH * PATCH, DIM)
        self.blocks = nn.Sequential(*(Mixer() for _ in range(depth)))
        self.out = nn.Linear(DIM, PATCH * PATCH)

    def forward(self, field):
        patches = field.unflatten(2, (-1, PATCH)).unflatten(1, (-1, PATCH)).transpose(2, 3)
        shape = patches.shape
        change = self.out(self.blocks(self.into(patches.flatten(3).flatten(1, 2))))
        return field + change.view(shape).transpose(2, 3).reshape(field.shape)


def throttle(model, times):
    """From now on the linear layers of this rank take so many times as long, there and back."""

    def forward(layer, inputs, _):
        with torch.no_grad():
            for _ in range(times - 1):
                F.linear(inputs[0], layer.weight, layer.bias)

    def backward(layer, _, grads):
        for _ in range(2 * (times - 1)):
            grads[0] @ layer.weight

    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(forward)
            layer.register_full_backward_hook(backward)


def make(gen, batch):
    """Waves that travel to the east by one cell an hour."""
    grid = torch.arange(SIDE) / SIDE * 2 * torch.pi
    k = torch.randint(1, 4, (batch, 2, 1, 1), generator=gen)
    phase = 6.3 * torch.rand(batch, 1, 1, generator=gen)
    wave = torch.sin(k[:, 0] * grid[None, None] + k[:, 1] * grid[None, :, None] + phase)
    return wave, wave.roll(1, -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--fault", choices=["none", "throttled"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Forecast()
    if args.fault == "throttled" and rank == 1:
        throttle(model, 3)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(30 + rank)
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        now, later = make(gen, args.batch)
        loss = F.mse_loss(ddp(now), later)
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
