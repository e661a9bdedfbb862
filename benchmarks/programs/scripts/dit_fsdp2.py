"""A small diffusion transformer in fully_shard, on latents that an autoencoder wrote beforehand."""

import argparse
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler


@dataclass
class Config:
    width: int = 64
    depth: int = 2
    heads: int = 4
    tokens: int = 8
    channels: int = 16
    batch: int = 8
    steps: int = 14
    lr: float = 2e-3


class Latents(Dataset):
    """Those that the host has read before are in its page cache."""

    def __init__(self, cfg: Config, read_s: float):
        self.cfg, self.read_s = cfg, read_s
        self.mixing = torch.randn(4, cfg.channels, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return self.cfg.batch * self.cfg.steps * dist.get_world_size()

    def __getitem__(self, index):
        time.sleep(self.read_s)
        gen = torch.Generator().manual_seed(index)
        return torch.randn(self.cfg.tokens, 4, generator=gen) @ self.mixing / 2


class Block(nn.Module):
    """Attention and MLP, scaled and shifted by the time embedding (adaLN-Zero)."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.heads = cfg.heads
        self.norm1 = nn.LayerNorm(cfg.width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(cfg.width, elementwise_affine=False)
        self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.out = nn.Linear(cfg.width, cfg.width)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.width, 4 * cfg.width), nn.GELU(), nn.Linear(4 * cfg.width, cfg.width)
        )
        self.ada = nn.Linear(cfg.width, 6 * cfg.width)
        nn.init.zeros_(self.ada.weight)

    def attend(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c)[:, None].chunk(6, -1)
        x = x + gate1 * self.attend(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.embed = nn.Linear(cfg.channels, cfg.width)
        self.position = nn.Parameter(torch.randn(cfg.tokens, cfg.width) * 0.02)
        self.time = nn.Sequential(nn.Linear(1, cfg.width), nn.SiLU())
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.depth))
        self.final = nn.Linear(cfg.width, cfg.channels)

    def forward(self, x, t):
        c, h = self.time(t[:, None]), self.embed(x) + self.position
        for block in self.blocks:
            h = block(h, c)
        return self.final(h)


def flow_matching_loss(model, data):
    t, noise = torch.rand(len(data)), torch.randn_like(data)
    mixed = torch.lerp(noise, data, t[:, None, None])
    return F.mse_loss(model(mixed, t), data - noise)


def train(cfg: Config, fault: str):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DiT(cfg)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    # rank 0's host made the latents, so it has them in memory; the others read over the network
    cold = fault == "cold-cache" and rank > 0
    dataset = Latents(cfg, read_s=0.0055 if cold else 0.0005)
    loader = DataLoader(dataset, cfg.batch, sampler=DistributedSampler(dataset, seed=1))
    torch.manual_seed(rank)
    losses = []
    for latents in loader:
        loss = flow_matching_loss(model, latents)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    ends = torch.tensor([sum(losses[:3]), sum(losses[-3:])])
    dist.all_reduce(ends)
    assert ends[1] < ends[0], ends


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "cold-cache"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(Config(), args.fault)
    dist.destroy_process_group()
