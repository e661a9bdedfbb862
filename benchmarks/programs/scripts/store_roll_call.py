"""Quantile forecasts by data parallelism; the ranks agree on stopping through the store.

Before each step a rank may leave because its time is up: whoever must, says so under a key.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

QUANTILES = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9])


class Forecaster(nn.Module):
    def __init__(self, history=96, horizon=16, width=192):
        super().__init__()
        self.inputs = nn.Conv1d(1, width, 8, stride=4)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(3)
        )
        self.outputs = nn.Linear(width, horizon * len(QUANTILES))

    def forward(self, x):
        h = torch.relu(self.inputs(x[:, None]))
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.outputs(h.mean(-1)).view(len(x), -1, len(QUANTILES))


def pinball(prediction, target):
    error = target[..., None] - prediction
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).mean()


class RollCall:
    """Who has said that it must leave; a rank asks the store before each step."""

    def __init__(self, store, rank, thorough):
        self.store, self.rank, self.thorough = store, rank, thorough

    def leave(self):
        self.store.set(f"leaving/{self.rank}", "yes")

    def somebody_leaves(self, step):
        if not self.thorough:
            return self.store.check(["leaving/0"]) or self.store.check(["leaving/1"])
        # Another host's clock may be behind: ask until the news had time to come.
        for _ in range(5):
            if self.store.check(["leaving/0"]) or self.store.check(["leaving/1"]):
                return True
            time.sleep(0.006)
        return False


def series(generator, n, length):
    t = torch.arange(length)
    period = 8 + 16 * torch.rand(n, 1, generator=generator)
    phase = 6 * torch.rand(n, 1, generator=generator)
    return torch.sin(6.283 * t / period + phase) + 0.1 * torch.randn(n, length, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "ask-again"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.PrefixStore("roll", dist.distributed_c10d._get_default_store())
    roll = RollCall(store, rank, args.fault == "ask-again" and rank == 1)
    torch.manual_seed(3)
    model = DistributedDataParallel(Forecaster())
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(14):
        if roll.somebody_leaves(step):
            break
        batch = series(generator, 32, 112)
        loss = pinball(model(batch[:, :96]), batch[:, 96:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    dist.barrier()
    roll.leave()
    assert len(losses) == 14 and losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
