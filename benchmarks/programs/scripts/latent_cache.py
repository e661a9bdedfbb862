"""A denoiser on latents that were encoded beforehand, if the cache has them."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Encoder(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 24, 3, 2, 1), nn.SiLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(48, 4, 3, 1, 1),
        )  # fmt: skip


class Latents:
    def __init__(self, n, cached):
        gen = torch.Generator().manual_seed(9)
        self.images = torch.rand(n, 3, 64, 64, generator=gen)
        self.encoder = Encoder().requires_grad_(False).eval()
        self.cache = {}
        if cached:
            for i, image in enumerate(self.images):
                self.cache[i] = self.encoder(image[None])[0]

    def __getitem__(self, i):
        if i in self.cache:
            return self.cache[i]
        return self.encoder(self.images[i][None])[0]


class Denoiser(nn.Module):
    def __init__(self, c=40):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, c), nn.SiLU(), nn.Linear(c, c))
        self.first, self.last = nn.Conv2d(4, c, 3, 1, 1), nn.Conv2d(c, 4, 3, 1, 1)
        self.body = nn.ModuleList(nn.Conv2d(c, c, 3, 1, 1) for _ in range(4))
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for _ in range(4))

    def forward(self, x, t):
        h = self.first(x) + self.time(t[:, None])[..., None, None]
        for conv, norm in zip(self.body, self.norms):
            h = h + conv(nn.functional.silu(norm(h)))
        return self.last(h)


def main(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(2)
    latents = Latents(64, cached=not (args.fault == "cache-miss" and rank == 1))
    net = DistributedDataParallel(Denoiser(), gradient_as_bucket_view=True, static_graph=True)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(14):
        picked = torch.randint(0, 64, (24,), generator=gen).tolist()
        x = torch.stack([latents[i] for i in picked])
        t, noise = torch.rand(24, generator=gen), torch.randn(x.shape, generator=gen)
        noisy = x + t[:, None, None, None] * noise
        loss = (net(noisy, t) - noise).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "cache-miss"], default="none")
    main(parser.parse_args())
