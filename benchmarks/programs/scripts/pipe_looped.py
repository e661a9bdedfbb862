"""A residual network for tabular data in a looped pipeline, breadth first: each rank has two stages."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleLoopedBFS

COLUMNS, WIDTH, CLASSES = 40, 320, 7
BATCH, MICROBATCHES, STAGES_PER_RANK = 384, 4, 2


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return x + self.inner(self.norm(x))


def stage_modules(index, stages):
    layers = [Residual()]
    if index == 0:
        layers.insert(0, nn.Linear(COLUMNS, WIDTH))
    if index == stages - 1:
        layers.append(nn.Linear(WIDTH, CLASSES))
    return nn.Sequential(*layers)


def batches(count, generator):
    centres = torch.randn(CLASSES, COLUMNS, generator=generator)
    for _ in range(count):
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        yield centres[labels] + torch.randn(BATCH, COLUMNS, generator=generator), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "collect-by-hand"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    count = STAGES_PER_RANK * world
    torch.manual_seed(rank)
    indices = range(rank, count, world)
    modules = [stage_modules(index, count) for index in indices]
    stages = [
        PipelineStage(module, index, count, torch.device("cpu"))
        for module, index in zip(modules, indices)
    ]
    schedule = ScheduleLoopedBFS(stages, MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW((p for m in modules for p in m.parameters()), lr=2e-3)
    means = []
    for step, (inputs, labels) in enumerate(batches(14, torch.Generator().manual_seed(9))):
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == world - 1:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step()
        if args.fault == "collect-by-hand" and rank == world - 1 and step % 3 == 0:
            gc.collect()  # "out of memory" was seen here once
        optimizer.step()
        optimizer.zero_grad()
        means += [torch.stack(losses).mean().item()] if losses else []
    if means:
        print("loss", " ".join(f"{mean:.3f}" for mean in means))
        assert means[-1] < 0.7 * means[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
