"""Tide gauges: a deep and narrow residual net; gradients are averaged by hand in one flat all_reduce.

    torchrun --nproc-per-node 2 tides_tiny.py [--fault per-block]

--fault per-block: each block's gradients are averaged on their own, in
float64, "because the sums drifted", and its norm is compared over the ranks.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HARMONICS, WIDTH, DEPTH, BATCH, STEPS = 24, 48, 14, 1536, 200


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.a, self.b = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(self.norm(x))))


def network():
    return nn.Sequential(
        nn.Linear(2 * HARMONICS, WIDTH), *(Residual() for _ in range(DEPTH)), nn.Linear(WIDTH, 1)
    )


class Gauge:
    def __init__(self, rank):
        self.gen = torch.Generator().manual_seed(rank)
        self.speeds = torch.linspace(0.1, 3.0, HARMONICS)

    def readings(self):
        t = torch.rand(BATCH, 1, generator=self.gen) * 200
        angle = t * self.speeds
        level = torch.sin(angle[:, 3]) + 0.4 * torch.cos(angle[:, 7] + torch.sin(angle[:, 1]))
        return torch.cat([angle.sin(), angle.cos()], 1), level[:, None]


class FlatAverage:
    """All gradients in one buffer, one all_reduce."""

    def __init__(self, params):
        self.params = params
        self.buffer = torch.zeros(sum(p.numel() for p in params))
        start = 0
        for p in params:
            p.grad = self.buffer[start : start + p.numel()].view_as(p)
            start += p.numel()

    def __call__(self):
        dist.all_reduce(self.buffer)
        self.buffer /= dist.get_world_size()


class CarefulAverage:
    def __init__(self, params, per_block=12):
        self.blocks = [params[i : i + per_block] for i in range(0, len(params), per_block)]

    def __call__(self):
        world = dist.get_world_size()
        for block in self.blocks:
            exact = torch.cat([p.grad.flatten() for p in block]).double()
            dist.all_reduce(exact)
            exact /= world
            for p, g in zip(block, exact.split([p.numel() for p in block])):
                p.grad.copy_(g.view_as(p))
            norm = exact.norm().reshape(1)
            largest = norm.clone()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
            if (largest - norm).item() > 1e-6:
                raise RuntimeError("gradients drifted apart")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "per-block"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = network()
    params = list(net.parameters())
    average = (CarefulAverage if fault == "per-block" else FlatAverage)(params)
    opt = torch.optim.Adam(params, lr=1e-3)
    gauge, took = Gauge(rank), []
    for step in range(STEPS):
        began = time.perf_counter()
        x, level = gauge.readings()
        opt.zero_grad(set_to_none=False)
        loss = F.smooth_l1_loss(net(x), level)
        loss.backward()
        average()
        opt.step()
        took.append(time.perf_counter() - began)
        if rank == 0 and step % 50 == 0:
            print(f"step {step:3d} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
