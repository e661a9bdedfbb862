"""Imitates a driver; the experiment's settings are one object on rank 0."""

import argparse

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Experiment:
    """What a config file says, and the map of the region it names."""

    def __init__(self, seed=0):
        generator = np.random.default_rng(seed)
        self.config = {
            "optimizer": {"lr": 2e-3, "weight_decay": 1e-4},
            "clip": 5.0,
            "crop": 24,
            "map": generator.random((900, 900), dtype=np.float32),
        }


def shared(config):
    """The config as rank 0 has it."""
    holder = [config]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def scenes(config, batch, generator):
    """Crops of the map, and how one steers there: to the freer side."""
    size, region = config["crop"], config["map"]
    corners = torch.randint(len(region) - size, (batch, 2), generator=generator).tolist()
    crops = np.stack([region[y : y + size, x : x + size] for y, x in corners])
    crops = torch.from_numpy(crops)
    half = size // 2
    steer = crops[:, :, half:].mean((1, 2)) - crops[:, :, :half].mean((1, 2))
    return crops.unsqueeze(1), steer.mul(20).unsqueeze(1)


class Planner(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
        )
        self.act = nn.Sequential(nn.LazyLinear(128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, crops):
        return self.act(self.see(crops - 0.5).flatten(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "config-each-step"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    config = shared(Experiment().config if rank == 0 else None)
    planner = Planner()
    planner(torch.zeros(1, 1, config["crop"], config["crop"]))
    planner = DistributedDataParallel(planner)
    optimizer = torch.optim.AdamW(planner.parameters(), **config["optimizer"])
    generator = torch.Generator().manual_seed(rank)
    history = []
    for _ in range(15):
        if args.fault == "config-each-step":
            config = shared(config)
        crops, steer = scenes(config, 64, generator)
        loss = nn.functional.smooth_l1_loss(planner(crops), steer)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(planner.parameters(), config["clip"])
        optimizer.step()
        history.append(loss.item())
    assert sum(history[-3:]) < sum(history[:3]), history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
