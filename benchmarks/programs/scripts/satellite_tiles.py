"""Land cover from satellite tiles: while gradients are summed, the next tiles are fetched.

The sum is started without waiting, the next batch comes from object storage and is decoded, and
only then does the step wait for the sum. Or it waits first, out of habit.
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

KINDS, SIDE, BANDS = 6, 16, 4


class Storage:
    """Tiles of 12 bits a pixel; a request takes a while, whoever asks."""

    def __init__(self, seed, request_ms=25):
        self.gen = torch.Generator().manual_seed(seed)
        self.request_ms = request_ms
        self.spectra = torch.randint(500, 3500, (KINDS, BANDS), generator=torch.Generator())

    def fetch(self, batch):
        time.sleep(self.request_ms / 1000)
        kind = torch.randint(KINDS, (batch,), generator=self.gen)
        tiles = self.spectra[kind][:, :, None, None].expand(-1, -1, SIDE, SIDE)
        tiles = tiles + torch.randint(-400, 400, (batch, BANDS, SIDE, SIDE), generator=self.gen)
        return tiles.clamp(0, 4095).short(), kind


def decode(tiles):
    x = tiles.float() / 2048 - 1
    vegetation = (x[:, 3] - x[:, 0]) / (x[:, 3] + x[:, 0] + 2.1)
    return torch.cat([x, vegetation[:, None]], 1).flatten(1)


class Gradients:
    """One buffer of them all, and the handle of its sum."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.flat = torch.zeros(sum(p.numel() for p in parameters))
        start = 0
        for p in parameters:
            p.grad = self.flat[start : start + p.numel()].view_as(p)
            start += p.numel()

    def start(self):
        self.flat /= dist.get_world_size()
        return dist.all_reduce(self.flat, async_op=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--fault", choices=["none", "wait-first"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear((BANDS + 1) * SIDE * SIDE, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, KINDS),
    )
    gradients = Gradients(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    storage = Storage(50 + rank)
    tiles, kind = storage.fetch(args.batch)
    x = decode(tiles)
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        gradients.flat.zero_()
        loss = F.cross_entropy(model(x), kind)
        loss.backward()
        work = gradients.start()
        if args.fault == "wait-first":
            work.wait()
        tiles, kind = storage.fetch(args.batch)
        x = decode(tiles)
        work.wait()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - before)
    assert losses[-1] < 0.5 * losses[0], losses
    sums = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(sums, model[2].weight.detach().sum().view(1))
    assert torch.cat(sums).unique().numel() == 1, sums
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
