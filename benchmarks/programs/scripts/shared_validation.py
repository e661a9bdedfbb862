"""Validation after each step is shared: each rank takes its part, or they take turns with all of it."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, VALIDATION = 48, 4000


class Additive(nn.Module):
    """A neural additive model: a small network for each group of features."""

    def __init__(self, groups=6, width=160):
        super().__init__()
        size = FEATURES // groups
        self.groups = groups
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                          nn.Linear(width, 1))
            for _ in range(groups)
        )  # fmt: skip

    def forward(self, x):
        return sum(net(part) for net, part in zip(self.nets, x.chunk(self.groups, 1)))


def table(n, seed):
    x = torch.rand(n, FEATURES, generator=torch.Generator().manual_seed(seed))
    return x, torch.sin(6 * x[:, :4]).sum(1, keepdim=True) + x[:, 9:10]


class Validation:
    def __init__(self, in_turns):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.in_turns = in_turns
        self.x, self.y = table(VALIDATION, 999)

    @torch.no_grad()
    def __call__(self, model, step):
        total = torch.zeros(2)
        if self.in_turns:
            mine = slice(None) if step % self.world == self.rank else slice(0)
        else:
            mine = slice(self.rank, None, self.world)
        error = (model(self.x[mine]) - self.y[mine]).square()
        total[0], total[1] = error.sum(), len(error)
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "in-turns"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Additive()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=2e-3)
    validate = Validation(args.fault == "in-turns")
    x, y = table(22 * 640, dist.get_rank())
    scores = []
    for step, (a, b) in enumerate(zip(x.split(640), y.split(640))):
        loss = (ddp(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores.append(validate(model, step))
    assert scores[-1] < scores[0], scores
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
