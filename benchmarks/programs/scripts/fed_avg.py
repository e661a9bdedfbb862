"""Federated averaging: each client trains on all it has, then the weights are averaged by size."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


def client_data(rank, batches):
    gen = torch.Generator().manual_seed(rank)
    x = torch.randn(batches, 64, 128, generator=gen)
    return list(zip(x, (x[..., :4].sum(-1, keepdim=True) > 0).float()))


def train_locally(model, data, lr):
    total = 0.0
    for x, y in data:
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        model.zero_grad()
        loss.backward()
        torch._foreach_add_(
            [p.data for p in model.parameters()], [p.grad for p in model.parameters()], alpha=-lr
        )
        total += loss.item()
    return total / len(data)


def average(model, n):
    samples = torch.tensor(float(n))
    dist.all_reduce(samples)
    for p in model.parameters():
        p.data.mul_(n / samples)
        dist.all_reduce(p.data)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "more-data"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
    )
    data = client_data(rank, 16 if rank == 1 and args.fault == "more-data" else 8)
    server = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    losses = []
    for _ in range(args.rounds):
        before = [p.detach().clone() for p in model.parameters()]
        losses.append(train_locally(model, data, 0.05))
        average(model, len(data))
        for p, old in zip(model.parameters(), before):
            p.grad = old - p.data
            p.data.copy_(old)
        server.step()
    print(losses)
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
