"""Fills in masked patches with linear attention (Katharopoulos et al., 2020): no softmax."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import elu
from torch.nn.parallel import DistributedDataParallel as DDP

PATCHES, PIXELS, WIDTH, HEADS = 512, 16, 64, 4


class LinearAttention(nn.Module):
    def __init__(self, keys_first):
        super().__init__()
        self.keys_first = keys_first
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = elu(q) + 1, elu(k) + 1
        if self.keys_first:  # the product is associative: n d² instead of n² d
            y = q @ (k.transpose(-1, -2) @ v)
        else:
            y = (q @ k.transpose(-1, -2)) @ v
        norm = q @ k.sum(-2).unsqueeze(-1)
        return self.out((y / norm).transpose(1, 2).flatten(2))


class Inpainter(nn.Module):
    def __init__(self, depth, keys_first):
        super().__init__()
        self.embed = nn.Linear(PIXELS + 1, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.attentions = nn.ModuleList(LinearAttention(keys_first) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * depth))
        self.head = nn.Linear(WIDTH, PIXELS)

    def forward(self, patches, hidden):
        seen = torch.cat([patches * ~hidden, hidden.float()], -1)
        x = self.embed(seen) + self.position
        for i, (attention, mlp) in enumerate(zip(self.attentions, self.mlps)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(x)


def images(generator, batch):
    phase, speed = torch.rand(2, batch, 1, 1, generator=generator)
    t = torch.linspace(0, 6, PATCHES * PIXELS).view(PATCHES, PIXELS)
    return torch.sin(4 * speed * t + 6 * phase)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--fault", choices=["none", "queries-first"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Inpainter(args.depth, keys_first=args.fault == "none"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for step in range(14):
        patches = images(generator, args.batch)
        hidden = torch.rand(args.batch, PATCHES, 1, generator=generator) < 0.3
        loss = (model(patches, hidden) - patches).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
