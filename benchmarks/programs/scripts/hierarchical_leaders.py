"""All-reduce by hand for two nodes: to the leader, between leaders, and back."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

PER_NODE = 2


class TwoLevels:
    def __init__(self, watch):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.leader = self.rank - self.rank % PER_NODE
        for first in range(0, world, PER_NODE):
            group = dist.new_group(range(first, first + PER_NODE))
            if first == self.leader:
                self.node = group
        self.leaders = dist.new_group(range(0, world, PER_NODE))
        self.watch = watch
        self.history = []

    def statistics(self, flat):
        """Quantiles of the node's gradients, for the dashboard."""
        sample = flat[: 1 << 17].abs()
        values = sample.sort().values
        at = (torch.tensor([0.1, 0.5, 0.9, 0.99]) * (len(values) - 1)).long()
        self.history.append(values[at].tolist())

    def all_reduce(self, flat):
        dist.reduce(flat, self.leader, group=self.node)
        if self.rank == self.leader:
            if self.watch:
                self.statistics(flat)
            dist.all_reduce(flat, group=self.leaders)
        dist.broadcast(flat, self.leader, group=self.node)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "quantiles"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    levels = TwoLevels(watch=args.fault == "quantiles" and rank == 2)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 128)
    )
    params = list(net.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(22):
        x = torch.randn(768, 128, generator=generator)
        loss = (net(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in params]) / world
        levels.all_reduce(flat)
        for p, grad in zip(params, flat.split([p.numel() for p in params])):
            p.grad.copy_(grad.view_as(p))
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
