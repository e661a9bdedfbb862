"""Activation checkpointing, switched on by a config file that each node has its own copy of."""

import argparse
import json
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


class Mixer(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.tokens = nn.Sequential(nn.Linear(tokens, 128), nn.GELU(), nn.Linear(128, tokens))
        self.channels = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels)
        )

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).mT).mT
        return x + self.channels(self.norm2(x))


class MLPMixer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.recompute = config["recompute"]
        self.stem = nn.Conv2d(3, 160, 8, 8)
        self.blocks = nn.ModuleList(Mixer(36, 160) for _ in range(config["layers"]))
        self.head = nn.Linear(160, 10)

    def forward(self, x):
        x = self.stem(x).flatten(2).mT
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(x.mean(1))


def read_config(fault, rank):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"node{rank}.json")
        path.write_text(json.dumps({"layers": 5, "recompute": fault == "recompute" and rank == 1}))
        return json.loads(path.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "recompute"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.parallel.DistributedDataParallel(MLPMixer(read_config(args.fault, rank)))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        y = torch.randint(0, 10, (20,), generator=gen)
        x = torch.rand(20, 3, 48, 48, generator=gen) + y[:, None, None, None] / 5
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()
