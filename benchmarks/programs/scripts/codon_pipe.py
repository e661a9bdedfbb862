"""Which amino acid does a codon stand for, whatever its neighbours are? A pipeline of two."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

BASES, ACIDS, WINDOW, BATCH, WIDTH = 4, 20, 5, 192, 48
MS_PER_CODON = 0.06


class Card(torch.autograd.Function):
    """The time that the accelerator takes, twice as long for the way back."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(len(x) * MS_PER_CODON / 1e3)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(len(grad) * 2 * MS_PER_CODON / 1e3)
        return grad


class Residual(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)
        )

    def forward(self, x):
        return x + super().forward(x)


class Stage(nn.Module):
    def __init__(self, first, last, layers=2):
        super().__init__()
        self.embed = nn.Linear(3 * WINDOW * BASES, WIDTH) if first else nn.Identity()
        self.blocks = nn.Sequential(*(Residual() for _ in range(layers)))
        self.head = nn.Linear(WIDTH, ACIDS) if last else nn.Identity()

    def forward(self, x):
        return self.head(Card.apply(self.blocks(self.embed(x))))


def genes(generator):
    bases = torch.randint(BASES, (BATCH, WINDOW, 3), generator=generator)
    code = bases[:, WINDOW // 2] @ torch.tensor([1, 4, 16])
    return nn.functional.one_hot(bases, BASES).float().flatten(1), code * 7 % 64 % ACIDS


def loss_fn(logits, acids):
    return nn.functional.cross_entropy(logits, acids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--fault", choices=["none", "one-microbatch"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    module = Stage(first=rank == 0, last=rank == 1)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    chunks = 1 if args.fault == "one-microbatch" else args.microbatches
    schedule = ScheduleGPipe(stage, chunks, loss_fn=loss_fn)
    optimizer = torch.optim.Adam(module.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    history = []
    for _ in range(14):
        x, acids = genes(generator)
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        else:
            losses = []
            schedule.step(target=acids, losses=losses)
            history.append(torch.stack(losses).mean().item())
        optimizer.step()
    if rank == 1:
        assert history[-1] < history[0], history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
