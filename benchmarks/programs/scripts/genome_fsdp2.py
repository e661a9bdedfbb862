"""Masked-base pretraining on DNA windows with FSDP2."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

A, C, G, T, MASK = range(5)


class ConvBlock(nn.Module):
    """Depthwise convolution over the window, then a gated feed-forward layer."""

    def __init__(self, width, reach):
        super().__init__()
        self.norm_in = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, reach, padding=reach // 2, groups=width)
        self.norm_out = nn.LayerNorm(width)
        self.gate, self.up = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.mix(self.norm_in(x).transpose(1, 2)).transpose(1, 2)
        h = self.norm_out(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class GenomeModel(nn.Module):
    def __init__(self, width=96, depth=2):
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.blocks = nn.ModuleList(ConvBlock(width, 9) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, bases):
        x = self.embed(bases)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shard(model, finely):
    for block in model.blocks:
        if finely:
            for module in block.children():
                fully_shard(module)
        fully_shard(block)
    if finely:
        for module in (model.embed, model.norm, model.head):
            fully_shard(module)
    return fully_shard(model)


def windows(batch, length, generator):
    """Tandem repeats: a short motif again and again, with some of the bases hidden."""
    motif = torch.randint(4, (batch, 4), generator=generator)
    bases = motif.repeat(1, length // 4)
    hidden = torch.rand(bases.shape, generator=generator) < 0.15
    return bases.masked_fill(hidden, MASK), bases, hidden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "shard-each-module"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = shard(GenomeModel(), args.fault == "shard-each-module")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(args.steps):
        shown, bases, hidden = windows(6, 48, generator)
        loss = F.cross_entropy(model(shown)[hidden], bases[hidden])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
