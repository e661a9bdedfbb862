"""Metrics are summed in the background and read a step later."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn


class Meter:
    """The mean over ranks of what was put in; known when the next is put in."""

    def __init__(self):
        self.work = self.value = None
        self.history = []

    def put(self, value):
        self.read()
        self.value = value.detach().clone()
        self.work = dist.all_reduce(self.value, async_op=True)

    def read(self):
        if self.work:
            self.work.wait()
            self.history.append(self.value.item() / dist.get_world_size())
            self.work = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=700)
    parser.add_argument("--fault", choices=["none", "nfs-hiccups"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(300, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 40))
    decoder = nn.Sequential(nn.Linear(40, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 300))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(encoder, decoder))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    loss_meter, norm_meter = Meter(), Meter()
    mixing = torch.randn(8, 300, generator=torch.Generator().manual_seed(1))
    gen = torch.Generator().manual_seed(10 + rank)
    for step in range(14):
        x = torch.randn(160, 8, generator=gen) @ mixing
        if args.fault == "nfs-hiccups" and rank == 1 and step % 4 == 1:
            time.sleep(0.080)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        loss_meter.put(loss)
        norm_meter.put(nn.utils.get_total_norm(p.grad for p in model.parameters()))
        optimizer.step()
    loss_meter.read(), norm_meter.read()
    if rank == 0:
        print(loss_meter.history, norm_meter.history)
    assert loss_meter.history[-1] < loss_meter.history[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
