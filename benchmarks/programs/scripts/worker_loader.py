"""Images are decoded by a worker process of each rank."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __init__(self, count, decode):
        self.count, self.decode = count, decode

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.decode)
        gen = torch.Generator().manual_seed(index)
        label = index % 6
        return torch.randn(3, 20, 20, generator=gen) + 0.5 * label, label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--fault", choices=["none", "slow-worker"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = args.fault == "slow-worker" and rank == 1
    data = Pictures(2 * 14 * args.batch_size, 0.004 if slow else 0.0002)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(
        data, args.batch_size, sampler=sampler, num_workers=args.workers, persistent_workers=True
    )
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 6),
    )  # fmt: skip
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    sampler.set_epoch(0)
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if rank == 0:
            print(len(losses), f"{losses[-1]:.3f}")
    assert min(losses[-3:]) < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
