"""A language model of melodies in three stages, by hand: all forwards, then all backwards.

    torchrun --nproc-per-node 3 music_stages.py [--fault histograms]

--fault histograms: the second stage watches its activations for a dashboard:
quantiles, and histograms by channel, of what comes in and goes out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

NOTES, CONTEXT, DIM = 90, 32, 64
MICRO, MICRO_BATCHES, STEPS = 4, 5, 60


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
        self.register_buffer("mask", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.mlp(self.between(x))


def stage_module(rank: int, stages: int) -> nn.Module:
    if rank == 0:
        return nn.Sequential(nn.Embedding(NOTES, DIM), Layer(), Layer())
    if rank == stages - 1:
        return nn.Sequential(Layer(), Layer(), nn.LayerNorm(DIM), nn.Linear(DIM, NOTES))
    return nn.Sequential(Layer(), Layer())


@dataclass
class Dashboard:
    quantiles: list[Tensor] = field(default_factory=list)
    bins: Tensor = field(default_factory=lambda: torch.zeros(64))

    @torch.no_grad()
    def watch(self, x: Tensor) -> None:
        self.quantiles.append(torch.quantile(x.flatten(), torch.tensor([0.01, 0.5, 0.99])))
        for channel in x.flatten(0, 1).T:
            self.bins += torch.histc(channel, 64, -6, 6)


def melody(generator: torch.Generator) -> Tensor:
    """Broken chords in one of a few keys."""
    key = torch.randint(12, (MICRO, 1), generator=generator)
    turn = torch.randint(4, (MICRO, 1), generator=generator)
    chord = torch.tensor([0, 4, 7, 12])
    return 30 + key + chord[(torch.arange(CONTEXT + 1)[None] + turn) % 4]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "histograms"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == stages - 1
    torch.manual_seed(rank)
    stage = stage_module(rank, stages)
    opt = torch.optim.Adam(stage.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(8)  # the first has the notes, the last what follows
    dashboard = Dashboard() if fault == "histograms" and rank == 1 else None
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        inputs, outputs, sending = [], [], []
        for _ in range(MICRO_BATCHES):
            notes = melody(generator)
            if first:
                x = notes[:, :-1]
            else:
                x = torch.empty(MICRO, CONTEXT, DIM)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            y = stage(x)
            if dashboard:
                dashboard.watch(x)
                dashboard.watch(y)
            if last:
                y = F.cross_entropy(y.flatten(0, 1), notes[:, 1:].flatten()) / MICRO_BATCHES
            else:
                sending.append((dist.isend(y.detach(), rank + 1), y))
            inputs.append(x)
            outputs.append(y)
        for x, y in zip(inputs, outputs):
            if last:
                y.backward()
            else:
                grad = torch.empty_like(y)
                dist.recv(grad, rank + 1)
                y.backward(grad)
            if not first:
                sending.append((dist.isend(x.grad, rank - 1), x))
        for work, _ in sending:
            work.wait()
        opt.step()
        opt.zero_grad()
        took.append(time.perf_counter() - start)
        if last and step % 15 == 0:
            print(f"step {step:3d}  loss {sum(y.item() for y in outputs):.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
