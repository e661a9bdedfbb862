"""A GAN: two networks, two optimizers; hosts may hiccup in turn."""

import argparse
import itertools
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as Parallel

args = argparse.ArgumentParser(description="GAN")
args.add_argument("--z", type=int, default=32)
args.add_argument("--fault", default="none", choices=["none", "turns"])


def mlp(*sizes):
    layers = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def main(opt):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator, critic = Parallel(mlp(opt.z, 256, 128)), Parallel(mlp(128, 384, 1))
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    bce = nn.BCEWithLogitsLoss()
    torch.manual_seed(rank)
    first = last = None
    ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)
    for it in range(14):
        real = torch.randn(128, 128) * 0.2 + 1
        for part in range(2):
            if opt.fault == "turns" and (it + part) % 2 == rank:
                time.sleep(0.030)
            fake = generator(torch.randn(128, opt.z))
            if part == 0:
                both = critic(torch.cat([real, fake.detach()]))
                loss_d = bce(both[:128], ones) + bce(both[128:], zeros)
                opt_d.zero_grad()
                loss_d.backward()
                opt_d.step()
            else:
                loss_g = bce(critic(fake), ones)
                opt_g.zero_grad()
                loss_g.backward()
                opt_g.step()
        first, last = first or loss_d.item(), loss_d.item()
        if rank == 0:
            print("D: %.3f G: %.3f" % (loss_d.item(), loss_g.item()))
    assert last < first
    dist.destroy_process_group()


if __name__ == "__main__":
    main(args.parse_args())
