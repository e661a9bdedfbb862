"""Sketches of furniture by a generator and a critic, each under DDP.

    torchrun --nproc-per-node 2 sketch_gan.py [--fault watch-and-barrier]

--fault watch-and-barrier: two at once. Rank 0 measures how diverse the
sketches are, by the singular values of a hundred of them in every step;
and all ranks meet at a barrier before either network is trained, since
somebody once saw them out of step.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, NOISE, BATCH, STEPS = 24, 32, 24, 60


def generator():
    return nn.Sequential(
        nn.Linear(NOISE, 48 * 36),
        nn.Unflatten(1, (48, 6, 6)),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(48, 24, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.ConvTranspose2d(24, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def critic():
    return nn.Sequential(
        nn.Conv2d(1, 24, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(24, 48, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(48 * 36, 1),
    )


def sketches(gen):
    """A seat on two legs."""
    page = -torch.ones(BATCH, 1, SIDE, SIDE)
    seat = torch.randint(6, 16, (BATCH,), generator=gen).tolist()
    left = torch.randint(2, 10, (BATCH,), generator=gen).tolist()
    for n, (y, x) in enumerate(zip(seat, left)):
        page[n, 0, y, x : x + 11] = 1
        page[n, 0, y:22, x] = 1
        page[n, 0, y:22, x + 10] = 1
    return page


class Trainer:
    def __init__(self, fault):
        torch.manual_seed(2)
        self.g, self.d = DDP(generator()), DDP(critic())
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=1e-3, betas=(0.5, 0.99))
        self.rank = dist.get_rank()
        self.gen = torch.Generator().manual_seed(self.rank)
        self.fault = fault == "watch-and-barrier"
        self.diversity = []

    def noise(self, n=BATCH):
        return torch.randn(n, NOISE, generator=self.gen)

    @torch.no_grad()
    def watch(self):
        many = self.g.module(self.noise(112)).flatten(1)
        values = torch.linalg.svdvals(many - many.mean(0))
        self.diversity.append((values.cumsum(0) < 0.9 * values.sum()).sum().item())

    def train_critic(self):
        if self.fault:
            dist.barrier()
        real, made = sketches(self.gen), self.g.module(self.noise()).detach()
        score = self.d(torch.cat([real, made]))
        loss = F.softplus(-score[:BATCH]).mean() + F.softplus(score[BATCH:]).mean()
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def train_generator(self):
        if self.fault:
            dist.barrier()
        self.d.requires_grad_(False)
        loss = F.softplus(-self.d.module(self.g(self.noise()))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.requires_grad_(True)
        if self.fault and self.rank == 0:
            self.watch()
        return loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "watch-and-barrier"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trainer = Trainer(args.fault)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        loss_d, loss_g = trainer.train_critic(), trainer.train_generator()
        took.append(time.perf_counter() - start)
        if trainer.rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  critic {loss_d:.3f}  generator {loss_g:.3f}", flush=True)
    if trainer.rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()
