"""Hybrid sharding: shards within a pair of ranks, replicas across pairs."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    """Samples behind a network: whole batches, each a round trip."""

    def __init__(self, rank, latency):
        self.rank, self.latency = rank, latency

    def __len__(self):
        return 20

    def __getitem__(self, i):
        time.sleep(self.latency)
        g = torch.Generator().manual_seed(100 * self.rank + i)
        x = torch.randn(16, 96, generator=g)
        return x, x.flip(1)


def cli():
    p = argparse.ArgumentParser()
    p.add_argument("--latency-ms", type=float, default=40)
    p.add_argument("--fault", default="none", choices=["none", "slow-loader"])
    return p.parse_args()


def main():
    a = cli()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    late = 50 if a.fault == "slow-loader" and rank == 2 else 0
    loader = DataLoader(Remote(rank, (a.latency_ms + late) / 1e3), batch_size=None)
    seen = []
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        seen.append(loss.item())
        if rank == 0:
            print(i, seen[-1])
        if i == 13:
            break
    assert seen[-1] < seen[0]
    dist.destroy_process_group()


main() if __name__ == "__main__" else None
