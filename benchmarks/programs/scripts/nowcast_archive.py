"""Precipitation nowcasting with a small U-Net. All forecasts are archived for the forecasters."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import interpolate
from torch.nn.parallel import DistributedDataParallel as DDP


class Archive:
    """Forecasts in an object store. It takes so many bytes a second from one client."""

    def __init__(self, folder, flush_every, offset, bandwidth=3.2e6):
        self.folder, self.bandwidth = Path(folder), bandwidth
        self.flush_every, self.offset = flush_every, offset
        self.kept = []

    def add(self, step, forecast):
        self.kept.append(forecast.detach().clone())
        if (step + self.offset) % self.flush_every == 0:
            self.flush(step)

    def flush(self, step):
        fields = torch.stack(self.kept)
        begin = time.perf_counter()
        (self.folder / f"{step:06}.bin").write_bytes(fields.numpy().tobytes())
        taken = time.perf_counter() - begin
        time.sleep(max(fields.nbytes / self.bandwidth - taken, 0))
        self.kept.clear()


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(2, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.middle = nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU())
        self.up = nn.Conv2d(c + 2, 1, 3, padding=1)

    def forward(self, x):
        y = self.middle(self.down(x))
        return self.up(torch.cat([interpolate(y, scale_factor=2), x], 1))


def radar(generator, n=8, size=32):
    """A cell of rain at three times, drifting to the east."""
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre = torch.rand(n, 2, 1, 1, generator=generator) * (size - 16) + 4
    frames = [
        torch.exp(-((x - centre[:, 0] - 3 * t) ** 2 + (y - centre[:, 1]) ** 2) / 40)
        for t in range(3)
    ]
    return torch.stack(frames[:2], 1), frames[2][:, None]


def main(args):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(TinyUNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(rank)
    every, offset = 1, 0
    if args.fault == "flush-in-turn":  # fewer, larger objects, and never all clients at once
        every, offset = world_size, rank
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(folder, every, offset)
        for step in range(args.steps):
            past, future = radar(generator)
            forecast = model(past)
            loss = (forecast - future).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            archive.add(step, forecast)
            losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--fault", choices=["none", "flush-in-turn"], default="none")
    main(parser.parse_args())
