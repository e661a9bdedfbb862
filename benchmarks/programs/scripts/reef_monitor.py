"""Bleaching of reefs: ranks 0 and 1 train, rank 2 draws what they send it.

    torchrun --nproc-per-node 3 reef_monitor.py [--fault slow-plots]

--fault slow-plots: the monitor writes its plots to a network file system. Nobody waits for
it: the trainers send without waiting and complete a send one step later.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SIDE, BATCH, BINS, STEPS = 32, 32, 64, 25


def reefs(gen):
    depth = torch.rand(BATCH, 1, 1, 1, generator=gen)
    image = torch.rand(BATCH, 3, SIDE, SIDE, generator=gen)
    image[:, 2:] += depth
    return image, depth.flatten()


def network():
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 48, 3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(48 * 64, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )


class Telemetry:
    """Histograms for the monitor, sent and forgotten."""

    def __init__(self):
        self.work, self.kept = None, None

    def send(self, net, loss):
        if self.work:
            self.work.wait()  # of the step before: it has long been received
        grads = torch.cat([p.grad.flatten() for p in net.parameters()])
        counts = torch.histc(grads, BINS, -1, 1)
        self.kept = torch.cat([counts, loss.detach().reshape(1)])
        self.work = dist.isend(self.kept, 2)


def train(group, rank):
    torch.manual_seed(0)
    net, telemetry = network(), Telemetry()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    gen = torch.Generator().manual_seed(rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        image, depth = reefs(gen)
        loss = F.mse_loss(net(image).squeeze(1), depth)
        opt.zero_grad()
        loss.backward()
        works = [dist.all_reduce(p.grad, group=group, async_op=True) for p in net.parameters()]
        for work in works:
            work.wait()
        for p in net.parameters():
            p.grad /= 2
        opt.step()
        telemetry.send(net, loss)
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 6 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    telemetry.work.wait()
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")


def monitor(slow):
    seen = torch.zeros(2, BINS + 1)
    for _ in range(STEPS):
        for trainer in range(2):
            dist.recv(seen[trainer], trainer)
        bars = ["#" * int(40 * share) for share in seen[0, :BINS] / seen[0, :BINS].sum()]
        "\n".join(bars).encode()
        if slow:
            time.sleep(0.03)  # the plot is written


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "slow-plots"])
    slow = parser.parse_args().fault == "slow-plots"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers = dist.new_group([0, 1])
    if rank == 2:
        monitor(slow)
    else:
        train(trainers, rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
