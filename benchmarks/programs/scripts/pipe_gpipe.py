"""torch.distributed.pipelining with GPipe."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Part(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.sleep = 0.0

    def forward(self, x):
        time.sleep(self.sleep)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--fault", default="none", choices=["none", "slow-stage"])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    part = Part(288, 3)
    if args.fault == "slow-stage" and rank == 0:
        part.sleep = 0.008
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, args.micro, loss_fn=nn.MSELoss())
    opt = torch.optim.Adam(part.parameters(), lr=3e-4)
    gen = torch.Generator().manual_seed(0)
    means = []
    for step in range(14):
        x = torch.randn(64 * args.micro, 288, generator=gen)
        opt.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=x.roll(1, 1), losses=losses)
            means.append(torch.stack(losses).mean().item())
            print(step, means[-1])
        opt.step()
    assert not means or means[-1] < means[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
