"""Rain in the next hour by local SGD: models are averaged now and then, not gradients.

    torchrun --nproc-per-node 2 rain_local.py [--fault every-step]

--fault every-step: somebody set the averager's period to 1; it is meant to be 8.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

STATIONS, HOURS, WIDTH, BATCH, STEPS = 128, 12, 640, 280, 30


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(STATIONS * HOURS, WIDTH)
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, STATIONS)

    def forward(self, x):
        h = self.into(x.flatten(1))
        for mix, norm in zip(self.mix, self.norm):
            h = h + F.gelu(mix(norm(h)))
        return self.out(h)


def weather(gen):
    """Fronts that pass the stations."""
    phase = torch.rand(BATCH, 1, 1, generator=gen) * 6.28
    speed = 0.2 + 0.1 * torch.randn(BATCH, 1, 1, generator=gen)
    where = torch.arange(STATIONS)[None, None] * 0.1
    hour = torch.arange(HOURS + 1)[None, :, None]
    rain = torch.relu(torch.sin(where + phase + speed * hour))
    return rain[:, :-1], rain[:, -1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "every-step"])
    period = 1 if parser.parse_args().fault == "every-step" else 8
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 10, gamma=0.7)
    averager = PeriodicModelAverager(period=period)
    gen = torch.Generator().manual_seed(rank)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        past, coming = weather(gen)
        loss = F.smooth_l1_loss(net(past), coming)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        averager.average_parameters(net.parameters())
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 10 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
