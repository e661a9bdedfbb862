"""Post-local SGD: gradients are summed at first, later the models are averaged now and then."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    """Slices of volumes that lie on a disk."""

    def __init__(self, seek):
        self.seek = seek

    def __len__(self):
        return 100_000

    def __getitem__(self, i):
        time.sleep(self.seek)
        gen = torch.Generator().manual_seed(i)
        noise = torch.randn(1, 24, 24, generator=gen)
        return noise + 0.5 * (i % 2), i % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--fault", choices=["none", "slow-disk"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    seek = 0.0035 if args.fault == "slow-disk" and rank == 1 else 0.0005
    sampler = torch.utils.data.DistributedSampler(Scans(seek), drop_last=True)
    loader = DataLoader(Scans(seek), args.batch_size, sampler=sampler, num_workers=0)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Conv2d(1, 56, 3, padding=1), nn.ReLU(), nn.Conv2d(56, 56, 3, padding=1), nn.ReLU(),
            nn.AvgPool2d(4), nn.Flatten(), nn.Linear(56 * 36, 2),
        )
    )  # fmt: skip
    alone, _ = dist.new_subgroups(1)
    state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=4)
    net.register_comm_hook(state, post_localSGD_hook)
    opt = PostLocalSGDOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.05),
        PeriodicModelAverager(period=2, warmup_steps=4),
    )
    losses = []
    for _, (x, y) in zip(range(14), loader):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert min(losses[-4:]) < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
