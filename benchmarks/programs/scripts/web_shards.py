"""Tar-like shards from object storage, read ahead by a thread; every few steps a new one begins."""

import argparse
import io
import queue
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

PER_SHARD = 3


def shard(number, latency):
    """What the storage sends: the first byte takes its time."""
    time.sleep(latency)
    gen = torch.Generator().manual_seed(number)
    file = io.BytesIO()
    torch.save(torch.randn(PER_SHARD, 96, 200, generator=gen), file)
    file.seek(0)
    return file


class Shards:
    def __init__(self, rank, latency):
        self.rank, self.latency = rank, latency
        self.queue = queue.Queue(maxsize=1)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        number = self.rank
        while True:
            for batch in torch.load(shard(number, self.latency)):
                self.queue.put(batch)
            number += dist.get_world_size()

    def __iter__(self):
        while True:
            yield self.queue.get()


if __name__ == "__main__":
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--fault", choices=["none", "cold-storage"], default="none")
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cold = args.fault == "cold-storage" and rank == 0
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(200, 640), nn.GELU(), nn.LayerNorm(640), nn.Linear(640, 640), nn.GELU(),
            nn.Linear(640, 200),
        )
    )  # fmt: skip
    opt = torch.optim.RAdam(net.parameters(), lr=1e-3)
    losses = []
    for _, x in zip(range(14), Shards(rank, 0.200 if cold else 0.005)):
        loss = (net(x) - x.sort(1).values).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
