"""Plant-disease classifier over leaf patches, cut in two pipeline stages.

torchrun --nproc-per-node 2 pipe_patches.py [--fault crumbs]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "crumbs"])
FAULT = parser.parse_args().fault
CHUNKS = 16 if FAULT == "crumbs" else 4
BATCH, SIDE, PATCH, DIM, CLASSES, STEPS = 32, 40, 8, 80, 6, 64
TOKENS = (SIDE // PATCH) ** 2
BLOCKS_PER_STAGE = 2


def block():
    return nn.TransformerEncoderLayer(
        DIM, 4, 3 * DIM, dropout=0.0, batch_first=True, norm_first=True
    )


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.pos = nn.Parameter(0.02 * torch.randn(TOKENS, DIM))
        self.blocks = nn.Sequential(*[block() for _ in range(BLOCKS_PER_STAGE)])

    def forward(self, images):
        return self.blocks(self.embed(images).flatten(2).transpose(1, 2).contiguous() + self.pos)


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[block() for _ in range(BLOCKS_PER_STAGE)])
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(x).mean(1))


def leaves(gen):
    label = torch.randint(CLASSES, (BATCH,), generator=gen)
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=gen)
    stripes = torch.sin(torch.arange(SIDE) * (0.3 + 0.2 * label.view(-1, 1)))
    return images + stripes.view(BATCH, 1, 1, SIDE), label


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = Front() if rank == 0 else Back()
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=CHUNKS, loss_fn=F.cross_entropy)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(11)  # both ends draw the same batches
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        images, label = leaves(gen)
        opt.zero_grad()
        if rank == 0:
            schedule.step(images)
        else:
            losses = []
            schedule.step(target=label, losses=losses)
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == world - 1 and step % 20 == 0:
            print(f"step {step:3d}  loss {torch.stack(losses).mean().item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
