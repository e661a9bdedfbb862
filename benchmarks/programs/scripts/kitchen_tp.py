"""Recipes from photographs of kitchens: two replicas of two tensor-parallel ranks each.

    torchrun --nproc-per-node 4 kitchen_tp.py [--fault slow-mount]

--fault slow-mount: the host of the second replica (ranks 2 and 3) has its photographs on
a mount that takes its time for every file.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.data import DataLoader, Dataset

SIDE, WIDTH, DISHES, BATCH, STEPS = 20, 256, 40, 32, 24


class Photographs(Dataset):
    """Both ranks of a replica see the same ones."""

    def __init__(self, replica, slow):
        self.replica, self.slow = replica, slow

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        if self.slow:
            time.sleep(0.0016)  # open() on the mount
        gen = torch.Generator().manual_seed(index + 10_000 * self.replica)
        dish = index % DISHES
        return torch.rand(3 * SIDE * SIDE, generator=gen) + 0.02 * dish, dish


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 6 * WIDTH)
        self.down = nn.Linear(6 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Cook(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Linear(3 * SIDE * SIDE, WIDTH)
        self.think = nn.ModuleList([Block(), Block()])
        self.name = nn.Linear(WIDTH, DISHES)

    def forward(self, x):
        h = F.relu(self.look(x))
        for block in self.think:
            h = block(h)
        return self.name(h)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def average_over(group, parameters):
    """One flat all_reduce among those that hold the same shard."""
    grads = [local(p.grad) for p in parameters]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for g, mean in zip(grads, flat.split([g.numel() for g in grads])):
        g.copy_(mean.view_as(g))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "slow-mount"])
    slow = parser.parse_args().fault == "slow-mount"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    replica = mesh.get_local_rank("dp")
    torch.manual_seed(0)
    net = Cook()
    for block in net.think:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)
    photographs = Photographs(replica, slow and replica == 1)
    times = []
    began = time.perf_counter()
    for step, (photo, dish) in enumerate(DataLoader(photographs, BATCH)):
        loss = F.cross_entropy(net(photo), dish)
        opt.zero_grad()
        loss.backward()
        average_over(mesh.get_group("dp"), list(net.parameters()))
        opt.step()
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
