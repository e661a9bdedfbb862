"""A parameter server of sends and receives: no collectives at all."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

SERVER = 0


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(96, 384), torch.nn.GELU(), torch.nn.Linear(384, 384), torch.nn.GELU(),
        torch.nn.Linear(384, 1),
    )  # fmt: skip


def serve(net, steps):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    grad = torch.empty_like(parameters_to_vector(net.parameters()))
    for _ in range(steps):
        total = torch.zeros_like(grad)
        for worker in range(1, dist.get_world_size()):
            dist.recv(grad, worker)
            total += grad
        at = 0
        for p in net.parameters():
            p.grad = total[at : at + p.numel()].view_as(p)
            at += p.numel()
        opt.step()
        weights = parameters_to_vector(net.parameters()).detach()
        for worker in range(1, dist.get_world_size()):
            dist.send(weights, worker)


def work(net, steps, fetch):
    local = torch.optim.SGD(net.parameters(), lr=0.0)  # for its zero_grad, and its hooks
    gen = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        time.sleep(fetch)  # the feature store answers
        x = torch.randn(256, 96, generator=gen)
        loss = (net(x) - x[:, :8].sum(1, keepdim=True)).square().mean()
        local.zero_grad()
        loss.backward()
        local.step()
        dist.send(torch.cat([p.grad.flatten() for p in net.parameters()]), SERVER)
        weights = torch.empty_like(parameters_to_vector(net.parameters()))
        dist.recv(weights, SERVER)
        vector_to_parameters(weights, net.parameters())
        losses.append(loss.item())
    print(losses)
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "slow-store"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == SERVER:
        serve(network(), args.steps)
    else:
        slow = args.fault == "slow-store" and rank == 2
        work(network(), args.steps, 0.035 if slow else 0.005)
    dist.destroy_process_group()
