"""Local SGD: ranks train alone and average their parameters every third step."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

parser = argparse.ArgumentParser()
parser.add_argument("--period", type=int, default=3)
parser.add_argument("--fault", choices=["none", "sleeping-rank"], default="none")


def minibatch(step, rank):
    torch.manual_seed(1000 * rank + step)
    x = torch.randn(192, 200)
    return x, (x[:, ::2] - x[:, 1::2]).clamp(min=0)


if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(200, 700),
        torch.nn.ReLU(),
        torch.nn.Linear(700, 700),
        torch.nn.ReLU(),
        torch.nn.Linear(700, 100),
    )
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    averager = PeriodicModelAverager(period=args.period, warmup_steps=0)
    losses = []
    for step in range(14):
        x, y = minibatch(step, rank)
        if args.fault == "sleeping-rank" and rank == 1:
            time.sleep(0.030)
        loss = torch.nn.functional.mse_loss(model(x), y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        averager.average_parameters(model.parameters())
        losses.append(loss.item())
    print(rank, ["%.3f" % loss for loss in losses])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
