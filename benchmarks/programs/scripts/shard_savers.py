"""Every rank writes its own shard of the checkpoint to its own disk, then all meet."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Disk:
    def __init__(self, folder, flush):
        self.folder, self.flush = folder, flush

    def save(self, shard, name):
        path = Path(self.folder, name)
        with path.open("wb") as file:
            torch.save(shard, file)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(self.flush)  # a write cache that is off


def shard_of(model, rank, world):
    items = sorted(model.state_dict().items())
    return dict(items[rank::world])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save-every", type=int, default=3)
    parser.add_argument("--fault", choices=["none", "slow-disk"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.Softplus(), nn.Linear(256, 256), nn.Softplus(), nn.Linear(256, 64)
    )
    ddp = nn.parallel.DistributedDataParallel(model)
    opt = torch.optim.NAdam(ddp.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        disk = Disk(folder, 0.090 if args.fault == "slow-disk" and rank == 2 else 0.0)
        for step in range(1, 15):
            time.sleep(0.030)  # the simulation that makes this batch
            x = torch.randn(128, 64, generator=gen)
            loss = (ddp(x) - x.cumsum(1) / 8).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if step % args.save_every == 0:
                disk.save(shard_of(model, rank, world), f"step{step}-rank{rank}.pt")
                dist.barrier()
                if rank == 0:
                    Path(folder, "latest").write_text(str(step))
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
