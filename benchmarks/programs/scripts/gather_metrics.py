"""Metrics of all ranks are gathered as objects after each step."""

import argparse
import time
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, n, decode_ms):
        self.n, self.decode_ms = n, decode_ms
        self.prototypes = torch.randn(10, 3 * 16 * 16, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        time.sleep(self.decode_ms / 1000)
        g = torch.Generator().manual_seed(i)
        return self.prototypes[i % 10] + torch.randn(768, generator=g), i % 10


def accuracy(logits, y):
    return (logits.argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--fault", default="none", choices=["none", "slow-loader"])
    opts = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    slow = opts.fault == "slow-loader" and rank == 0
    data = Images(3200, decode_ms=1.0 if slow else 0.0)
    order = torch.utils.data.DistributedSampler(data, shuffle=True, seed=1)
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(
            nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
        )
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    book = defaultdict(list)
    for step, (x, y) in zip(range(14), DataLoader(data, opts.batch_size, sampler=order)):
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        everyone = [None] * world
        dist.all_gather_object(everyone, {"loss": loss.item(), "acc": accuracy(logits, y)})
        for key in ("loss", "acc"):
            book[key].append(sum(m[key] for m in everyone) / world)
        if rank == 0:
            print(step, {key: round(values[-1], 3) for key, values in book.items()})
    assert book["loss"][-1] < book["loss"][0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
