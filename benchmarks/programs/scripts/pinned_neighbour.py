"""Ranks bound to a core each, as launchers do; a stranger's job may share rank 1's."""

import argparse
import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn

BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(10000))"


def bind(rank):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "busy-neighbour"])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bind(rank)
    neighbour = None
    if args.fault == "busy-neighbour" and rank == 1:
        neighbour = subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())])
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(384, 384), nn.ELU(), nn.Linear(384, 384), nn.ELU(), nn.Linear(384, 1)
        )
    )
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    try:
        for i in range(14):
            x = torch.randn(256, 384, generator=gen)
            loss = nn.functional.huber_loss(model(x), x[:, :5].sum(1, keepdim=True))
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if rank == 0:
                print(f"{i}\t{losses[-1]:.4f}")
    finally:
        if neighbour:
            neighbour.kill()
            neighbour.wait()
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
