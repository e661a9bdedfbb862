"""signSGD with a majority vote: only the signs of gradients travel, a byte each."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Mixer(nn.Module):
    """Patches and channels in turn."""

    def __init__(self, patches=16, channels=320, classes=8):
        super().__init__()
        self.stem = nn.Linear(48, channels)
        self.over_patches = nn.ModuleList(nn.Linear(patches, patches) for _ in range(3))
        self.over_channels = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
            for _ in range(3)
        )  # fmt: skip
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        h = self.stem(x)
        for patches, channels in zip(self.over_patches, self.over_channels, strict=True):
            h = h + patches(self.norm(h).transpose(1, 2)).transpose(1, 2)
            h = h + channels(self.norm(h))
        return self.head(h.mean(1))


class MajorityVote(torch.optim.Optimizer):
    def __init__(self, params, lr, beta, as_floats):
        super().__init__(params, {"lr": lr, "beta": beta})
        self.as_floats = as_floats
        self.params = [p for group in self.param_groups for p in group["params"]]
        n = sum(p.numel() for p in self.params)
        self.momentum = torch.zeros(n)

    def vote(self):
        votes = self.momentum.sign()
        if not self.as_floats:
            votes = votes.to(torch.int8)  # a sum of up to 127 ranks fits
        dist.all_reduce(votes)
        return votes.float().sign_()

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        flat = torch.cat([p.grad.flatten() for p in self.params])
        self.momentum.lerp_(flat, 1 - group["beta"])
        update, start = self.vote(), 0
        for p in self.params:
            p.sub_(update[start : start + p.numel()].view_as(p), alpha=group["lr"])
            start += p.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "float-signs"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Mixer()
    optimizer = MajorityVote(model.parameters(), 2e-4, 0.8, args.fault == "float-signs")
    g = torch.Generator().manual_seed(9)
    prototypes = torch.randn(8, 16, 48, generator=g)
    g.manual_seed(dist.get_rank())
    losses = []
    for _ in range(14):
        y = torch.randint(8, (4,), generator=g)
        x = prototypes[y] + torch.randn(4, 16, 48, generator=g)
        loss = nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    probe = torch.cat([p.detach().flatten() for p in model.parameters()])
    other = probe.clone()
    dist.broadcast(other, 0)
    assert losses[-1] < losses[0] and torch.equal(probe, other)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
