"""Discharge in a network of rivers: a graph network on four parts of the map.

Features of boundary nodes are exchanged with the neighbours in a ring before each
layer (without gradient, as is usual); gradients are averaged in one flat all_reduce.

    torchrun --nproc-per-node 4 river_graph.py [--fault delta]

--fault delta: the parts have equally many nodes still, but that of rank 2 has a river
delta in it and with that many more edges.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

NODES, EDGES, BORDER, WIDTH, STEPS = 1600, 5000, 160, 48, 24


class Part:
    """Nodes of one rank; NODES.. are copies of the neighbours' border nodes."""

    def __init__(self, rank, world, edges):
        gen = torch.Generator().manual_seed(rank)
        self.left, self.right = (rank - 1) % world, (rank + 1) % world
        self.x = torch.randn(NODES, 16, generator=gen)
        self.source = torch.randint(NODES + 2 * BORDER, (edges,), generator=gen)
        self.sink = torch.randint(NODES, (edges,), generator=gen)
        count = torch.zeros(NODES).index_add_(0, self.sink, torch.ones(edges))
        self.share = (1 / count.clamp(min=1))[:, None]
        self.y = self.x[:, :4].sum(1).sin()

    def with_border(self, h):
        first, last = h[:BORDER].detach().clone(), h[-BORDER:].detach().clone()
        from_left, from_right = torch.empty_like(first), torch.empty_like(last)
        ops = [
            dist.P2POp(dist.isend, first, self.left, tag=1),
            dist.P2POp(dist.isend, last, self.right, tag=2),
            dist.P2POp(dist.irecv, from_left, self.left, tag=2),
            dist.P2POp(dist.irecv, from_right, self.right, tag=1),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return torch.cat([h, from_left, from_right])


class Layer(nn.Module):
    def __init__(self, width_in):
        super().__init__()
        self.own = nn.Linear(width_in, WIDTH)
        self.edge = nn.Linear(2 * width_in, WIDTH)

    def forward(self, h, part):
        around = part.with_border(h)
        pair = torch.cat([around[part.source], h[part.sink]], 1)
        message = F.silu(self.edge(pair))
        total = torch.zeros(NODES, WIDTH).index_add(0, part.sink, message)
        return F.relu(self.own(h) + total * part.share)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(16), Layer(WIDTH), Layer(WIDTH)])
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, part):
        h = part.x
        for layer in self.layers:
            h = layer(h, part)
        return self.out(h).squeeze(1)


def average(parameters, world):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= world
    for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad.copy_(g.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "delta"])
    delta = parser.parse_args().fault == "delta"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    part = Part(rank, world, 3 * EDGES if delta and rank == 2 else EDGES)
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        loss = F.mse_loss(net(part), part.y)
        opt.zero_grad()
        loss.backward()
        average(list(net.parameters()), world)
        opt.step()
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
