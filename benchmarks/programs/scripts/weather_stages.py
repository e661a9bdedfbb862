"""Precipitation nowcasting in two stages with torch.distributed.pipelining (1F1B).

    torchrun --nproc-per-node 2 weather_stages.py [--fault split-by-count]

--fault split-by-count: the layers are dealt out by their number, without
regard to their width, and the wide one comes last.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

CELLS, HOURS, DIM, BATCH, MICRO, STEPS = 32, 12, 64, 24, 6, 120
WIDTHS = [128] * 9 + [2560]  # of the mixing layers


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.cells = nn.Linear(CELLS, CELLS)
        self.up, self.down = nn.Linear(DIM, width), nn.Linear(width, DIM)

    def forward(self, x):
        x = x + self.cells(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(x)))


def deal(by_count):
    """The widths of the layers of the first and of the second stage."""
    if by_count:
        cut = len(WIDTHS) // 2
    else:
        sums = [
            sum(WIDTHS[:i]) + 100 * i for i in range(len(WIDTHS) + 1)
        ]  # 100: what any layer costs
        cut = min(range(len(sums)), key=lambda i: abs(2 * sums[i] - sums[-1]))
    return [WIDTHS[:cut], WIDTHS[cut:]]


class Stage(nn.Module):
    def __init__(self, widths, first, last):
        super().__init__()
        self.enter = nn.Linear(HOURS, DIM) if first else nn.Identity()
        self.layers = nn.Sequential(*(Mixer(w) for w in widths))
        self.leave = nn.Linear(DIM, 1) if last else nn.Identity()

    def forward(self, x):
        return self.leave(self.layers(self.enter(x)))


def rain(gen):
    past = torch.rand(BATCH, CELLS, HOURS, generator=gen).square()
    ahead = past.mean(2, keepdim=True).roll(1, 1) * 3
    return past, ahead


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "split-by-count"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    first, last = rank == 0, rank == world - 1
    widths = deal(fault == "split-by-count")[rank]
    module = Stage(widths, first, last)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=MICRO, loss_fn=F.mse_loss)
    opt = torch.optim.Adam(module.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(12)
    took = []
    for step in range(STEPS):
        began = time.perf_counter()
        past, ahead = rain(gen)
        losses = []
        if first:
            schedule.step(past)
        elif last:
            schedule.step(target=ahead, losses=losses)
        else:
            schedule.step()
        opt.step()
        opt.zero_grad()
        took.append(time.perf_counter() - began)
        if last and step % 20 == 0:
            print(f"step {step:3d} mse {torch.stack(losses).mean().item():.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
