"""Forecasts the paths of road users: agents attend to each other, batches are whole scenes."""

import argparse

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn

PAST, FUTURE, MOST = 10, 12, 32
torch._dynamo.config.recompile_limit = 64


class Interaction(nn.Module):
    """One round of attention among the agents of each scene."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, absent):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = torch.zeros(b, 1, 1, n).masked_fill(absent[:, None, None], -1e4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + y.transpose(1, 2).reshape(b, n, w)
        return x + self.mix(x)


class Forecaster(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.past = nn.GRU(4, width, batch_first=True)
        self.rounds = nn.ModuleList(Interaction(width) for _ in range(3))
        for block in self.rounds:
            block.compile(backend="eager", dynamic=False)
        self.head = nn.Linear(width, FUTURE * 2)

    def forward(self, tracks, absent):
        b, n = absent.shape
        _, state = self.past(tracks.flatten(0, 1))
        x = state[0].view(b, n, -1)
        for block in self.rounds:
            x = block(x, absent)
        return self.head(x).view(b, n, FUTURE, 2)


class Scenes:
    """Agents who turn steadily; ``multiple`` is what their number is padded to."""

    def __init__(self, seed, multiple):
        self.gen = torch.Generator().manual_seed(seed)
        self.multiple = multiple

    def draw(self, scenes=6):
        counts = torch.randint(6, MOST + 1, (scenes,), generator=self.gen)
        counts.clamp_(max=int(torch.randint(9, MOST + 1, (), generator=self.gen)))
        agents = -(-int(counts.max()) // self.multiple) * self.multiple
        absent = torch.arange(agents) >= counts[:, None]
        heading, turn = torch.randn(2, scenes, agents, 1, generator=self.gen)
        angle = heading * 3 + 0.1 * turn * torch.arange(PAST + FUTURE)
        step = torch.stack([angle.cos(), angle.sin()], -1)
        place = step.cumsum(2) - step[:, :, :PAST].sum(2, keepdim=True)
        tracks = torch.cat([place[:, :, :PAST], step[:, :, :PAST]], -1)
        return tracks, absent, place[:, :, PAST:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "exact-agents"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = Forecaster()
    for agents in (16, 32):  # all shapes there are, once
        net(
            torch.zeros(6, agents, PAST, 4), torch.zeros(6, agents, dtype=torch.bool)
        ).sum().backward()
    net.zero_grad()
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    scenes = Scenes(seed=rank + 3, multiple=1 if fault == "exact-agents" and rank == 1 else 16)
    losses = []
    for _ in range(14):
        tracks, absent, future = scenes.draw()
        error = (model(tracks, absent) - future).norm(dim=-1).mean(-1)
        loss = error[~absent].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
