"""Optimizer states in shards (ZeRO-1) by hand: bfloat16 weights, float32 masters where they live."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


class ShardedAdam:
    """Each rank keeps masters and moments of its slice of all parameters."""

    def __init__(self, module, lr, gather_masters):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.gather_masters = gather_masters
        params = list(module.parameters())
        total = sum(p.numel() for p in params)
        padded = -(-total // self.world) * self.world
        self.flat = torch.zeros(padded, dtype=torch.bfloat16)
        self.grad = torch.zeros_like(self.flat)
        offset = 0
        for p in params:  # parameters and gradients become views
            span = slice(offset, offset + p.numel())
            self.flat[span] = p.detach().flatten()
            p.data = self.flat[span].view_as(p)
            p.grad = self.grad[span].view_as(p)
            offset += p.numel()
        dist.broadcast(self.flat, 0)
        self.shard = self.flat.chunk(self.world)[self.rank]
        self.master = nn.Parameter(self.shard.float())
        self.inner = torch.optim.AdamW([self.master], lr=lr, betas=(0.9, 0.95))

    def step(self):
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(mine, self.grad)
        self.master.grad = mine.float() / self.world
        self.inner.step()
        self.grad.zero_()
        if self.gather_masters:
            whole = torch.empty(self.flat.shape)
            dist.all_gather_into_tensor(whole, self.master.detach())
            self.flat.copy_(whole)
        else:
            dist.all_gather_into_tensor(self.flat, self.master.detach().bfloat16())


class Mixer(nn.Module):
    """Mixes along tokens, then along channels."""

    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Linear(tokens, tokens)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.relu(self.up(self.norm2(x))).square())


class Digits(nn.Module):
    """Sorts what it is given, digit by digit."""

    def __init__(self, length=12, width=288, depth=3):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.blocks = nn.Sequential(*[Mixer(length, width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, digits):
        return self.head(self.blocks(self.embed(digits)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "gather-masters"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    torch.manual_seed(4)
    model = Digits().bfloat16()
    optimizer = ShardedAdam(model, 2e-3, gather_masters=fault == "gather-masters")
    gen = torch.Generator().manual_seed(40 + dist.get_rank())
    losses = []
    for _ in range(14):
        digits = torch.randint(10, (4, 12), generator=gen)
        logits = model(digits)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), digits.sort(1).values.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print([round(value, 3) for value in losses])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
