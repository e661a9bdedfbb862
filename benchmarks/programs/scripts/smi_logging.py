"""Rank 0 asks a command-line tool for the machine's load and keeps it with the loss."""

import argparse
import contextlib
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


def utilisation():
    """As nvidia-smi: a process that starts, asks a driver, and prints a line of CSV."""
    done = subprocess.run(
        ["sh", "-c", "sleep 0.04; cut -d' ' -f1-3 /proc/loadavg"], capture_output=True, text=True
    )
    return done.stdout.strip()


class CSVLogger:
    def __init__(self, every):
        self.every, self.rows = every, []

    def log(self, step, loss):
        if step % self.every == 0:
            self.rows.append(f"{step},{loss:.5f},{utilisation()}")


class ResNet(nn.Module):
    def __init__(self, c=56):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, 2, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, c), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1)) for _ in range(6)
        )
        self.head = nn.Linear(c, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--log-every", type=int, default=1000)
    cli.add_argument("--fault", choices=["none", "poll-often"], default="none")
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logger = None
    if rank == 0:
        logger = CSVLogger(1 if args.fault == "poll-often" else args.log_every)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(ResNet())
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(14):
        label = torch.randint(0, 5, (20,), generator=gen)
        x = torch.rand(20, 3, 32, 32, generator=gen) * (1 + label[:, None, None, None])
        with contextlib.nullcontext():  # was autocast
            loss = F.cross_entropy(net(x), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if logger:
            logger.log(step, losses[-1])
    if logger:
        print("\n".join(logger.rows))
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
