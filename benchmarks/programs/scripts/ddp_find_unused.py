"""Stochastic depth: some layers take no part in a step (find_unused_parameters)."""

import argparse
import gc
import random

import torch
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--keep", type=float, default=0.8)
parser.add_argument("--fault", choices=["none", "garbage-collection"], default="none")


class Stochastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 512)
        self.middle = nn.ModuleList(nn.Linear(512, 512) for _ in range(6))
        self.last = nn.Linear(512, 5)

    def forward(self, x, skip):
        x = self.first(x).relu()
        for i, layer in enumerate(self.middle):
            if i not in skip:
                x = x + layer(x).relu()
        return self.last(x)


def batches(seed):
    gen = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    while True:
        label = torch.randint(5, (160,), generator=gen)
        yield centres[label] + torch.randn(160, 128, generator=gen), label


if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    choice = random.Random(0)  # the same layers on all ranks
    ddp = nn.parallel.DistributedDataParallel(Stochastic(), find_unused_parameters=True)
    opt = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    history = []  # what a careless logger keeps: it makes every collection slow
    if args.fault == "garbage-collection" and rank == 1:
        history = [{"step": i, "tags": [str(i)]} for i in range(20_000)]
        gc.disable()
    losses = []
    for step, (x, label) in enumerate(batches(rank)):
        skip = {i for i in range(6) if choice.random() > args.keep}
        loss = nn.functional.cross_entropy(ddp(x, skip), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if history:
            gc.collect()
        if step == 13:
            break
    if rank == 0:
        print("loss", losses[0], "->", losses[-1])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
