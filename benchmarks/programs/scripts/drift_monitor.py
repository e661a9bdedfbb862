"""Federated averaging with server momentum, every rank a site with data of its own."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class DriftMonitor:
    """How far the averaged model has moved: from its start, and between any two rounds."""

    def __init__(self, keep):
        self.keep, self.visited = keep, []

    def see(self, vector):
        self.visited = (self.visited + [vector.clone()])[-self.keep :]
        path = torch.stack(self.visited)
        return (path[:, None] - path[None]).norm(dim=2).max().item()


class Site:
    def __init__(self, seed, samples=512):
        gen = torch.Generator().manual_seed(seed)
        shift = 0.3 * torch.randn(1, 64, generator=gen)
        self.x = torch.randn(samples, 64, generator=gen) + shift
        self.y = (self.x[:, :10] * self.x[:, 10:20]).argmax(dim=1)
        self.gen = gen

    def batches(self, count, size=128):
        for _ in range(count):
            rows = torch.randint(len(self.x), (size,), generator=self.gen)
            yield self.x[rows], self.y[rows]


def local_round(model, site, local_steps):
    weights = list(model.parameters())
    for x, y in site.batches(local_steps):
        loss = nn.functional.cross_entropy(model(x), y)
        with torch.no_grad():
            for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight -= 0.1 * grad
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--local-steps", type=int, default=8)
    parser.add_argument("--fault", choices=["none", "keeps-all-rounds"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 600), nn.ReLU(), nn.Linear(600, 10))
    site = Site(seed=50 + rank)
    monitor = DriftMonitor(keep=10_000 if args.fault == "keeps-all-rounds" else 2)
    server = nn.Parameter(parameters_to_vector(model.parameters()).detach().clone())
    optimizer = torch.optim.SGD([server], lr=1.0, momentum=0.5)
    losses = []
    for round_ in range(args.rounds):
        losses.append(local_round(model, site, args.local_steps))
        with torch.no_grad():
            server.grad = (server - parameters_to_vector(model.parameters())) / world
            dist.all_reduce(server.grad)
            optimizer.step()
            vector_to_parameters(server.clone(), model.parameters())
        if rank == 0:
            print(
                f"round {round_}: loss {losses[-1]:.3f}, drift {monitor.see(server.detach()):.3f}"
            )
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
