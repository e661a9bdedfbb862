"""Model-parallel embeddings under a replicated tower; each rank snapshots its own shard."""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Lookup(torch.autograd.Function):
    """Rows of a table whose columns are spread over the ranks: own columns to everyone."""

    @staticmethod
    def forward(ctx, mine):
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, grad):
        # everybody computes on the same samples, so that the gradients are alike
        return grad.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class Recommender(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        world = dist.get_world_size()
        self.table = nn.EmbeddingBag(rows, columns // world, mode="mean")
        self.tower = nn.Sequential(nn.Linear(columns, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, ids):
        return self.tower(Lookup.apply(self.table(ids))).squeeze(1)


def snapshot(model, folder, step, disk_delay):
    path = Path(folder) / f"shard{dist.get_rank()}.pt"
    torch.save({"step": step, "table": model.table.state_dict()}, path)
    time.sleep(disk_delay)  # until the disk has it


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--fault", choices=["none", "slow-disks"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = Recommender(3000, 192)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    gen = torch.Generator().manual_seed(2)  # the same samples everywhere
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(args.steps):
            ids = torch.randint(3000, (640, 12), generator=gen)
            wanted = (ids < 900).float().mean(dim=1)
            optimizer.zero_grad()
            loss = (model(ids) - wanted).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % args.every == args.every - 1:
                snapshot(model, folder, step, 0.090 if args.fault == "slow-disks" else 0.001)
    print(f"rank {dist.get_rank()}: {losses[0]:.4f} -> {losses[-1]:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
