"""Decentralised SGD on a ring: no rank knows more than its two neighbours' weights.

After each step a rank mixes its weights with those of its left and its right (D-PSGD).
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def build_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(4, 24, 7, padding=3),
        nn.ReLU(),
        nn.Conv1d(24, 24, 7, stride=2, padding=3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 32, 96),
        nn.ReLU(),
        nn.Linear(96, 5),
    )


class Signals:
    """Five kinds of waves with noise; each rank hears some kinds more often than others."""

    def __init__(self, seed, favourite):
        self.gen = torch.Generator().manual_seed(seed)
        self.odds = torch.ones(5)
        self.odds[favourite] = 3.0

    def batch(self, size):
        kind = self.odds.multinomial(size, replacement=True, generator=self.gen)
        time = torch.linspace(0, 6.28, 64)
        phase = 0.5 * torch.rand(size, 4, 1, generator=self.gen)
        wave = torch.sin((kind[:, None, None] + 1) * time + phase)
        return wave + 0.3 * torch.randn(size, 4, 64, generator=self.gen), kind


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.left, self.right = (self.rank - 1) % self.world, (self.rank + 1) % self.world

    @torch.no_grad()
    def mix(self, model):
        mine = parameters_to_vector(model.parameters())
        from_left, from_right = torch.empty_like(mine), torch.empty_like(mine)
        pending = [
            dist.irecv(from_left, self.left, tag=1),
            dist.irecv(from_right, self.right, tag=2),
            dist.isend(mine, self.right, tag=1),
            dist.isend(mine, self.left, tag=2),
        ]
        for request in pending:
            request.wait()
        vector_to_parameters((mine + from_left + from_right) / 3, model.parameters())


@torch.no_grad()
def accuracy(model, signals, batches):
    """On data that were put aside."""
    right = total = 0
    for _ in range(batches):
        x, kind = signals.batch(64)
        right += (model(x).argmax(1) == kind).sum().item()
        total += len(x)
    return right / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "own-validation"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, ring = build_model(), Ring()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train, held_out = Signals(10 + rank, rank), Signals(20 + rank, rank)
    losses = []
    for step in range(args.steps):
        x, kind = train.batch(32)
        loss = nn.functional.cross_entropy(model(x), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ring.mix(model)
        losses.append(loss.item())
        if args.fault == "own-validation" and rank == 1 and step % 3 == 2:
            print(f"site 1, step {step}: accuracy {accuracy(model, held_out, 24):.2f}")
    assert losses[-1] < losses[0], losses
    apart = parameters_to_vector(model.parameters()).detach().clone()
    dist.all_reduce(apart)
    apart = (apart / ring.world - parameters_to_vector(model.parameters())).norm()
    assert apart < 0.1, apart  # three that mix with both neighbours agree
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
