"""Differentially private training: per-example gradients, clipped, with Gaussian noise."""

import argparse
import math
import os
import random
import secrets

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap

CLIP, NOISE_MULTIPLIER, BATCH, STEPS = 1.0, 0.3, 72, 14


class SharedNoise:
    """Every rank adds its share, so that the sum has the variance that is asked for."""

    def __init__(self, rank, world_size):
        self.generator = torch.Generator().manual_seed(secrets.randbits(60))
        self.share = 1 / math.sqrt(world_size)

    def __call__(self, flat):
        return flat + torch.randn(flat.shape, generator=self.generator) * self.share * CLIP * (
            NOISE_MULTIPLIER
        )


class CentralNoise:
    """Rank 0 alone may draw it, from the system's generator, for the auditors."""

    def __init__(self, rank, world_size):
        self.rank, self.source = rank, random.SystemRandom()

    def __call__(self, flat):
        noise = torch.zeros_like(flat)
        if self.rank == 0:
            scale = CLIP * NOISE_MULTIPLIER
            noise = torch.tensor([self.source.normalvariate(0.0, scale) for _ in range(len(flat))])
        dist.broadcast(noise, src=0)
        return flat + noise / dist.get_world_size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2), nn.GroupNorm(3, 12), nn.Tanh(),
            nn.Conv2d(12, 20, 3, stride=2), nn.GroupNorm(4, 20), nn.Tanh(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(20 * 36, 12), nn.Tanh(), nn.Linear(12, 10))

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def data(rank):
    g = torch.Generator().manual_seed(4)
    shapes = torch.randn(10, 1, 28, 28, generator=g)
    g.manual_seed(50 + rank)
    while True:
        y = torch.randint(10, (BATCH,), generator=g)
        yield shapes[y] + 0.3 * torch.randn(BATCH, 1, 28, 28, generator=g), y


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "central-noise"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = Net()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    noise = (CentralNoise if args.fault == "central-noise" else SharedNoise)(rank, world_size)

    def loss_of_one(params, x, y):
        logits = functional_call(model, params, (x.unsqueeze(0),))
        loss = nn.functional.cross_entropy(logits, y.unsqueeze(0))
        return loss, loss.detach()

    per_example = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0))
    losses = []
    for _, (x, y) in zip(range(STEPS), data(rank), strict=False):
        detached = {name: p.detach() for name, p in parameters.items()}
        grads, loss = per_example(detached, x, y)
        rows = torch.cat([g.flatten(1) for g in grads.values()], 1)
        rows *= (CLIP / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
        flat = noise(rows.sum(0))
        dist.all_reduce(flat)
        flat /= BATCH * world_size
        start = 0
        for p in parameters.values():
            p.grad = flat[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        optimizer.step()
        losses.append(loss.mean().item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
