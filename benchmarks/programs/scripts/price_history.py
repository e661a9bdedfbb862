"""Probabilistic forecasts of electricity prices, one market area per rank, DDP.

torchrun --nproc-per-node 3 price_history.py [--fault keep-history]
"""

import argparse
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "keep-history"])
FAULT = parser.parse_args().fault
AREAS = ["north", "islands", "south"]
HOURS, AHEAD, BATCH, STEPS = 48, 24, 32, 90
QUANTILES = torch.tensor([0.1, 0.5, 0.9])


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 48, batch_first=True)
        self.head = nn.Linear(48, AHEAD * 3)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h[:, -1]).view(-1, AHEAD, 3)


class Spikes:
    """Threshold above which a price counts as a spike in this area."""

    def __init__(self, keep):
        self.keep = keep
        self.seen = np.zeros(0)

    def threshold(self, prices):
        prices = prices.numpy().ravel().astype(np.float64)
        if self.keep:
            self.seen = np.concatenate([self.seen, prices])
        else:
            self.seen = prices
        low, high = np.percentile(self.seen, [25, 75])
        calm = np.sort(self.seen[self.seen < high + 3 * (high - low)])
        return float(calm[int(0.95 * (len(calm) - 1))])


def prices(area, gen):
    t = torch.arange(HOURS + AHEAD).float() + torch.randint(24, (BATCH, 1), generator=gen)
    daily = torch.sin(2 * torch.pi * t / 24 + area)
    jump = (torch.rand(t.shape, generator=gen) < 0.02).float() * (4 + area)
    load = daily + 0.1 * torch.randn(t.shape, generator=gen)
    return torch.stack([daily + jump + 0.2 * torch.randn(t.shape, generator=gen), load], dim=-1)


def pinball(pred, target, weight):
    diff = target.unsqueeze(-1) - pred
    return (torch.maximum(QUANTILES * diff, (QUANTILES - 1) * diff) * weight.unsqueeze(-1)).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    area = AREAS[rank % len(AREAS)]
    torch.manual_seed(0)
    model = DDP(Forecaster())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    spikes = Spikes(keep=FAULT == "keep-history" and area == "islands")
    gen = torch.Generator().manual_seed(rank)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        series = prices(rank, gen)
        past, future = series[:, :HOURS], series[:, HOURS:, 0]
        limit = spikes.threshold(series[..., 0])
        weight = 1 + 2 * (future > limit).float()
        loss = pinball(model(past), future, weight)
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        last = 1e3 * statistics.median(took[-20:])
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step, the last 20: {last:.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
