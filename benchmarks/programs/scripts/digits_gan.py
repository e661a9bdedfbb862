"""A GAN of stroke images, both networks in DDP.

    torchrun --nproc-per-node 2 digits_gan.py [--fault critic-too]

--fault critic-too: the generator's step runs the critic through DDP with its gradients on,
so that these are averaged, too, and thrown away.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE, NOISE, BATCH, STEPS = 28, 64, 56, 30


def strokes(gen):
    """Line segments of any direction."""
    angle = torch.rand(BATCH, 1, 1, generator=gen) * torch.pi
    shift = 0.4 * torch.randn(BATCH, 1, 1, generator=gen)
    axis = torch.linspace(-1, 1, SIDE)
    across = angle.cos() * axis[None, None] + angle.sin() * axis[None, :, None] - shift
    return torch.exp(-40 * across.square()).flatten(1) * 2 - 1


def generator():
    return nn.Sequential(
        nn.Linear(NOISE, 512),
        nn.ReLU(),
        nn.Linear(512, 1024),
        nn.ReLU(),
        nn.Linear(1024, SIDE * SIDE),
        nn.Tanh(),
    )


def critic():
    return nn.Sequential(
        nn.Linear(SIDE * SIDE, 1024),
        nn.LeakyReLU(0.2),
        nn.Linear(1024, 768),
        nn.LeakyReLU(0.2),
        nn.Linear(768, 256),
        nn.LeakyReLU(0.2),
        nn.Linear(256, 1),
    )


class Game:
    def __init__(self, critic_too):
        self.critic_too = critic_too
        self.g, self.d = DDP(generator()), DDP(critic())
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2e-4, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=2e-4, betas=(0.5, 0.999))

    def critic_step(self, real, noise):
        with torch.no_grad():
            fake = self.g.module(noise)
        said = self.d(torch.cat([real, fake]))
        truth = torch.cat([torch.full((BATCH, 1), 0.9), torch.zeros(BATCH, 1)])
        loss = F.binary_cross_entropy_with_logits(said, truth)
        self.opt_d.zero_grad()
        loss.backward()
        self.opt_d.step()
        return loss.item()

    def generator_step(self, noise):
        if self.critic_too:
            said = self.d(self.g(noise))
        else:
            self.d.module.requires_grad_(False)
            said = self.d.module(self.g(noise))
        loss = F.binary_cross_entropy_with_logits(said, torch.ones(BATCH, 1))
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        self.d.module.requires_grad_(True)
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "critic-too"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    game = Game(args.fault == "critic-too")
    gen = torch.Generator().manual_seed(10 + rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        d = game.critic_step(strokes(gen), torch.randn(BATCH, NOISE, generator=gen))
        g = game.generator_step(torch.randn(BATCH, NOISE, generator=gen))
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} critic {d:.3f} generator {g:.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
