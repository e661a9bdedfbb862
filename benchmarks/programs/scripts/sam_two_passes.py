"""Sharpness-aware minimisation: two backward passes a step, of which the first needs nobody else."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class SAM:
    """After davda54/sam: climb by rho along this rank's own gradient, step from up there."""

    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho

    @torch.no_grad()
    def first_step(self):
        norm = torch.stack([p.grad.norm() for p in self.params]).norm() + 1e-12
        self.climbed = [p.grad * (self.rho / norm) for p in self.params]
        for p, e in zip(self.params, self.climbed):
            p.add_(e)
        self.base.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for p, e in zip(self.params, self.climbed):
            p.sub_(e)
        self.base.step()
        self.base.zero_grad()


class Net(nn.Module):
    def __init__(self, width=640, depth=4):
        super().__init__()
        self.first = nn.Linear(96, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, 10)

    def forward(self, x):
        x = self.first(x)
        for layer in self.hidden:
            x = x + layer(torch.relu(x)) / 2
        return self.last(x)


def train(args):
    torch.manual_seed(42)
    ddp = DistributedDataParallel(Net())
    base = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
    sam = SAM(ddp.parameters(), base)
    alone = ddp.no_sync if args.fault == "none" else contextlib.nullcontext
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, 96, generator=generator)
        label = x[:, :10].argmax(1)
        with alone():
            loss = nn.functional.cross_entropy(ddp(x), label)
            loss.backward()
        sam.first_step()
        nn.functional.cross_entropy(ddp(x), label).backward()
        sam.second_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--fault", choices=["none", "sync-both"], default="none")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    train(arguments)
    dist.destroy_process_group()
