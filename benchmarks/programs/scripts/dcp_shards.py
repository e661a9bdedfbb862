"""FSDP2, saved by torch.distributed.checkpoint now and then: each rank writes its own shard."""

import argparse
import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Disk(dcp.FileSystemWriter):
    def __init__(self, path, seconds):
        super().__init__(path, single_file_per_rank=True, sync_files=False)
        self.seconds = seconds

    def write_data(self, plan, planner):
        time.sleep(self.seconds)
        return super().write_data(plan, planner)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.SiLU(), nn.Linear(3 * dim, dim)
        )

    def forward(self, x):
        return x + self.net(x)


def build(mesh, dim, depth):
    model = nn.Sequential(*(Residual(dim) for _ in range(depth)), nn.Linear(dim, 1))
    for block in model[:-1]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--fault", choices=["none", "slow-disk"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = args.fault == "slow-disk" and rank == 1
    folder = os.path.join(tempfile.gettempdir(), f"run-{os.environ['MASTER_PORT']}")
    torch.manual_seed(0)
    model = build(init_device_mesh("cpu", (dist.get_world_size(),)), 192, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(22):
        x = torch.randn(384, 192, generator=generator)
        y = x[:, :3].prod(1, keepdim=True) + x[:, 3:5].sum(1, keepdim=True)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step % args.save_every == 0:
            writer = Disk(os.path.join(folder, str(step)), 0.13 if slow else 0.001)
            dcp.save({"model": model.state_dict()}, storage_writer=writer)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4]), losses
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
