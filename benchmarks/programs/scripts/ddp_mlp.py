"""Regression with an MLP under DistributedDataParallel."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_loader(rank, world_size, batch_size):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 256, generator=g)
    y = x[:, :8].sin().sum(1, keepdim=True)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=0)
    return DataLoader(data, batch_size=batch_size, sampler=sampler)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", default="none", choices=["none", "slow-rank", "sleeping-rank"])
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(
        nn.Sequential(
            nn.Linear(256, 768), nn.GELU(), nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 1)
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.MSELoss()

    losses = []
    for step, (x, y) in enumerate(make_loader(rank, world_size, 128)):
        if step == args.steps:
            break
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        if rank == 1 and args.fault == "slow-rank":
            weight = torch.randn(256, 256)
            until = time.perf_counter() + 0.030
            while time.perf_counter() < until:
                weight = torch.tanh(weight @ weight)
        if rank == 0 and args.fault == "sleeping-rank":
            time.sleep(0.025)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0:
            took = 1e3 * (time.perf_counter() - start)
            print(f"step {step:3d}  loss {losses[-1]:.4f}  {took:.1f} ms")
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
