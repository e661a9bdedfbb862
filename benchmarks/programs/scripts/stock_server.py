"""Demand of articles in shops: one parameter server, three workers.

The server (rank 0) sends the weights, each worker sends back its gradient,
the server steps. Workers hold the sales of their region.

    torchrun --nproc-per-node 4 stock_server.py [--fault ledger]

--fault ledger: for the auditors the server appends each update to a ledger,
and makes sure that it is on the disk before it goes on.
"""

import argparse
import json
import os
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ARTICLES, SHOPS, WIDTH, BATCH, STEPS = 400, 60, 96, 512, 150


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.article = nn.Embedding(ARTICLES, 32)
        self.shop = nn.Embedding(SHOPS, 32)
        self.body = nn.Sequential(
            nn.Linear(64 + 7, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, article, shop, weekday):
        x = torch.cat([self.article(article), self.shop(shop), F.one_hot(weekday, 7).float()], 1)
        return self.out(self.body(x)).squeeze(1)


class Ledger:
    """One line per update, and the update itself, to read by eye, beside it."""

    def __init__(self, folder):
        self.lines = open(os.path.join(folder, "ledger.jsonl"), "a")
        self.updates = open(os.path.join(folder, "updates.txt"), "a")

    def enter(self, step, gradient):
        norms = {f"block{i}": round(b.norm().item(), 5) for i, b in enumerate(gradient.split(512))}
        self.lines.write(json.dumps({"step": step, "norms": norms}) + "\n")
        np.savetxt(self.updates, gradient.view(1, -1).numpy(), fmt="%.4e")
        for file in (self.lines, self.updates):
            file.flush()
            os.fsync(file.fileno())


def serve(model, workers, ledger):
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    size = parameters_to_vector(model.parameters()).numel()
    inbox = [torch.empty(size) for _ in range(workers)]
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        weights = parameters_to_vector(model.parameters()).detach()
        for work in [dist.isend(weights, w + 1) for w in range(workers)]:
            work.wait()
        for work in [dist.irecv(inbox[w], w + 1) for w in range(workers)]:
            work.wait()
        mean = torch.stack(inbox).mean(0)
        start = 0
        for p in model.parameters():
            p.grad = mean[start : start + p.numel()].view_as(p)
            start += p.numel()
        opt.step()
        if ledger is not None:
            ledger.enter(step, mean)
        took.append(time.perf_counter() - began)
    print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")


def work(model, rank):
    gen = torch.Generator().manual_seed(rank)
    taste = torch.randn(ARTICLES, generator=torch.Generator().manual_seed(0))
    weights = parameters_to_vector(model.parameters()).detach()
    for step in range(STEPS):
        dist.recv(weights, 0)
        vector_to_parameters(weights, model.parameters())
        model.zero_grad()
        for _ in range(10):
            article = torch.randint(ARTICLES, (BATCH,), generator=gen)
            shop = torch.randint(SHOPS, (BATCH,), generator=gen)
            weekday = torch.randint(7, (BATCH,), generator=gen)
            sold = torch.poisson(torch.exp(taste[article] + 0.1 * weekday), generator=gen)
            loss = F.poisson_nll_loss(model(article, shop, weekday), sold) / 10
            loss.backward()
        if rank == 1 and step % 50 == 0:
            print(f"step {step:3d}  nll {10 * loss.item():.3f}", flush=True)
        dist.send(torch.cat([p.grad.flatten() for p in model.parameters()]), 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "ledger"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = Demand()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        if rank == 0:
            serve(model, dist.get_world_size() - 1, Ledger(folder) if fault == "ledger" else None)
        else:
            work(model, rank)
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
