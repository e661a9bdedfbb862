"""Retrieval for a shop: a tower for users' histories and one for items, in-batch negatives."""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as distF
from torch import nn
from torch.nn import functional as F


@dataclass
class Config:
    items: int = 120_000
    features: int = 96
    users: int = 64  # a batch and rank
    history: int = 60
    dim: int = 64
    steps: int = 14
    lr: float = 3e-3


def read_catalogue(config, half):
    """Each item's features, as exported; those of the nightly export take half the space."""
    rng = np.random.default_rng(5)
    table = rng.standard_normal((config.items, config.features), dtype=np.float32)
    return table.astype(np.float16 if half else np.float32)


class Tower(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(config.features, 256), nn.GELU(), nn.Linear(256, config.dim)
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.user, self.item = Tower(config), Tower(config)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, history, bought):
        return self.user(history.mean(1)), self.item(bought), self.log_scale.exp()


class Sessions:
    """Users who buy what is like what they looked at."""

    def __init__(self, catalogue, config, seed):
        self.catalogue, self.config = torch.from_numpy(catalogue), config
        self.rng = np.random.default_rng(seed)

    def draw(self):
        c = self.config
        seen = torch.from_numpy(self.rng.integers(0, c.items, (c.users, c.history)))
        features = self.catalogue.float()
        history, target = features[seen], features[seen[:, 0]]
        history[:, 1:4] = target[:, None]  # looked at more than once
        return history, target


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "half-export"], default="none")
    fault = parser.parse_args().fault
    config = Config()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    catalogue = read_catalogue(config, half=fault == "half-export" and rank == 1)
    dist.barrier()  # all have read
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(TwoTowers(config))
    optimizer = torch.optim.AdamW(model.parameters(), config.lr)
    sessions = Sessions(catalogue, config, seed=rank)
    labels = torch.arange(config.users) + rank * config.users
    losses = []
    for _ in range(config.steps):
        history, bought = sessions.draw()
        users, items, scale = model(history, bought)
        everybodys = torch.cat(distF.all_gather(items))
        loss = F.cross_entropy(scale * users @ everybodys.T, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert everybodys.size(0) == world * config.users
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
