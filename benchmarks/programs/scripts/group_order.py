"""Small urgent sums and two large ones that can wait: of one group they queue."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--table-rows", type=int, default=12000)
    parser.add_argument("--fault", default="none", choices=["none", "shared-group"])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    bulk = None if args.fault == "shared-group" else dist.new_group()
    torch.manual_seed(0)
    tables = [torch.zeros(args.table_rows, 256) for _ in range(2)]  # for the next step
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256)
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        x = torch.randn(128, 256, generator=gen)
        tables[0][:128] += x
        tables[1][:128] += x.square()
        statistics = [dist.all_reduce(table, group=bulk, async_op=True) for table in tables]
        mean = x.mean(0)
        dist.all_reduce(mean)  # is needed at once
        time.sleep(0.03)  # a service answers which of these samples count
        loss = (net(x - mean / n) - x.tanh()).square().mean()
        opt.zero_grad()
        loss.backward()
        for table, work in zip(tables, statistics):
            work.wait()
            table /= n
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        losses.append(loss.item())
    if rank == 0:
        print("losses:", *losses, sep="\n  ")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
