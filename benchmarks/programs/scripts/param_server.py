"""Rank 0 keeps the parameters: it broadcasts them and gets everybody's gradients."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def gradient(model, x, y):
    model.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])


def main(fault, rounds=14):
    rank, n = dist.get_rank(), dist.get_world_size()
    server = rank == 0
    torch.manual_seed(rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Tanh(),
        torch.nn.Linear(512, 1),
    )  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), lr=5e-4)
    data = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(rounds):
        weights = parameters_to_vector(model.parameters()).detach()
        if server and fault == "slow-server":
            time.sleep(0.030)  # evaluates, logs, answers the dashboard
        dist.broadcast(weights, src=0)
        vector_to_parameters(weights, model.parameters())
        x = torch.randn(256, 128, generator=data)
        loss, grads = gradient(model, x, x[:, :2].prod(1, keepdim=True) + x[:, 2:3])
        if rank == n - 1 and fault == "slow-worker":
            time.sleep(0.030)
        dist.reduce(grads, dst=0)
        if server:
            vector_to_parameters(grads / n, [p.grad for p in model.parameters()])
        adam.step()  # the workers' is overwritten by the next broadcast
        losses.append(loss)
        if server:
            print("round %d loss %.4f" % (len(losses), loss))
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "slow-server", "slow-worker"], default="none")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    main(arguments.fault)
    dist.destroy_process_group()
