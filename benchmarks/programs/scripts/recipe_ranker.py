"""Learns to rank recipes for a user, by pairs. The recipes are dicts with some arrays in them."""

import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

NUTRIENTS = 160


def cookbook(n):
    rng = np.random.default_rng(5)
    recipes = []
    for number in range(n):
        nutrients = rng.gamma(2.0, size=NUTRIENTS).astype(np.float32)
        recipes.append({"id": number, "nutrients": nutrients, "sugar": nutrients[:8].sum()})
    return recipes


class Ranker(nn.Module):
    def __init__(self, users, width=96):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.nutrients = nn.Sequential(nn.BatchNorm1d(NUTRIENTS), nn.Linear(NUTRIENTS, width))
        self.mlp = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU())
        self.score = nn.Linear(2 * width, 1)

    def forward(self, users, better, worse):
        recipes = self.nutrients(torch.cat([better, worse]))
        user = self.users(users).repeat(2, 1)
        better, worse = self.score(self.mlp(torch.cat([user, recipes], 1))).chunk(2)
        return nn.functional.softplus(worse - better).mean()


def as_tensor(arrays, stack):
    return torch.from_numpy(np.stack(arrays)) if stack else torch.tensor(arrays)


def pairs(recipes, rng, n, stack):
    """The one with less sugar is the better one."""
    drawn = [sorted(rng.sample(recipes, 2), key=lambda recipe: recipe["sugar"]) for _ in range(n)]
    better, worse = zip(*drawn)
    return (
        torch.tensor([rng.randrange(100) for _ in range(n)]),
        as_tensor([recipe["nutrients"] for recipe in better], stack),
        as_tensor([recipe["nutrients"] for recipe in worse], stack),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipes", type=int, default=3_000)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--fault", choices=["none", "list-of-arrays"], default="none")
    args = parser.parse_args()
    recipes = cookbook(args.recipes)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Ranker(users=100), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = random.Random(dist.get_rank())
    losses = []
    for _ in range(14):
        batch = pairs(recipes, rng, args.batch, stack=args.fault != "list-of-arrays")
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
