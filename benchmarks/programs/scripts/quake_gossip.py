"""Four buoys learn a wave model by gossip: no all_reduce, only exchanges with neighbours.

Each step every buoy takes one local SGD step and averages its weights with
its left or right neighbour on the ring, in turn.

    torchrun --nproc-per-node 4 quake_gossip.py [--fault tidy-memory]

--fault tidy-memory: buoy 2 keeps the readings of the day as Python objects for
the station's web page, and its operator, afraid of leaks, collects garbage by
hand every fifth step.
"""

import argparse
import gc
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

PAST, AHEAD, BATCH, STEPS = 64, 8, 192, 130


class Reading:
    def __init__(self, t, height, period):
        self.t, self.height, self.period = t, height, period
        self.flags = {"ok": True, "source": [t % 3]}


class Station:
    def __init__(self, rank, keep_page):
        self.gen = torch.Generator().manual_seed(rank)
        self.phase = torch.rand(3, generator=self.gen) * 6
        self.keep_page = keep_page
        self.page = [Reading(t, 0.5, 8.0) for t in range(12000)] if keep_page else []

    def batch(self):
        start = torch.rand(BATCH, 1, generator=self.gen) * 500
        t = start + torch.arange(PAST + AHEAD) * 0.3
        sea = torch.sin(t + self.phase[0]) + 0.5 * torch.sin(0.37 * t + self.phase[1])
        sea = sea + 0.1 * torch.randn(sea.shape, generator=self.gen)
        return sea[:, :PAST, None], sea[:, PAST:]

    def publish(self, step, x):
        if not self.keep_page:
            return
        self.page.extend(Reading(step, h, 8.0) for h in x[0, :8, 0].tolist())
        self.page = self.page[-12000:]
        if step % 5 == 0:
            gc.collect()


class Waves(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 40, batch_first=True)
        self.out = nn.Linear(40, AHEAD)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def gossip(model, peer):
    mine = parameters_to_vector(model.parameters()).detach()
    theirs = torch.empty_like(mine)
    ops = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    vector_to_parameters((mine + theirs) / 2, model.parameters())


def neighbour(rank, world, step):
    """Pairs (0,1)(2,3) in even steps, (1,2)(3,0) in odd ones."""
    right = (rank + step) % 2 == 0
    return (rank + 1) % world if right else (rank - 1) % world


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "tidy-memory"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Waves()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    station = Station(rank, keep_page=fault == "tidy-memory" and rank == 2)
    dist.barrier()
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        x, y = station.batch()
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        station.publish(step, x)
        gossip(model, neighbour(rank, world, step))
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 40 == 0:
            print(f"{step:3d} mse {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
