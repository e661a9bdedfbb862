"""Convolutional GAN on ring images; gradients averaged by hand in one flat buffer.

    torchrun --nproc-per-node 2 gan_rings.py [--fault preview_each_step]

Rank 0 keeps a moving-average generator and from time to time renders a preview
sheet with it and scores it with the discriminator (every 500 steps, so not once in
this short run).  --fault preview_each_step does that in every step.
"""

import argparse
import copy
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

Z, BATCH = 32, 16


def make_g():
    return nn.Sequential(
        nn.Linear(Z, 48 * 16),
        nn.Unflatten(1, (48, 4, 4)),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(48, 32, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(32, 16, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(16, 1, 3, padding=1),
        nn.Tanh(),
    )


def make_d():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 48, 3, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(48 * 16, 1),
    )


def rings(n, gen):
    ax = torch.linspace(-1, 1, 32)
    r = (ax[None, :, None] ** 2 + ax[None, None, :] ** 2).sqrt()
    radius = 0.3 + 0.5 * torch.rand(n, 1, 1, generator=gen)
    return (2 * torch.exp(-(((r - radius) / 0.1) ** 2)) - 1)[:, None]


def average(params, world):
    grads = [p.grad for p in params]
    flat = _flatten_dense_tensors(grads)
    dist.all_reduce(flat)
    flat.div_(world)
    for g, new in zip(grads, _unflatten_dense_tensors(flat, grads)):
        g.copy_(new)


class Trainer:
    def __init__(self, fault):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(3)
        self.g, self.d = make_g(), make_d()
        self.g_avg = copy.deepcopy(self.g).requires_grad_(False)
        self.og = torch.optim.Adam(self.g.parameters(), 5e-4, betas=(0.5, 0.99))
        self.od = torch.optim.Adam(self.d.parameters(), 5e-4, betas=(0.5, 0.99))
        self.gen = torch.Generator().manual_seed(40 + self.rank)
        self.fixed = torch.randn(100, Z, generator=torch.Generator().manual_seed(1))
        self.preview_every = 1 if fault == "preview_each_step" else 500
        self.sheet = None

    def noise(self):
        return torch.randn(BATCH, Z, generator=self.gen)

    def d_step(self, real):
        fake = self.g(self.noise()).detach()
        loss = F.softplus(-self.d(real)).mean() + F.softplus(self.d(fake)).mean()
        self.od.zero_grad()
        loss.backward()
        average(list(self.d.parameters()), self.world)
        self.od.step()
        return loss.item()

    def g_step(self):
        self.d.requires_grad_(False)
        loss = F.softplus(-self.d(self.g(self.noise()))).mean()
        self.og.zero_grad()
        loss.backward()
        self.d.requires_grad_(True)
        average(list(self.g.parameters()), self.world)
        self.og.step()
        for a, p in zip(self.g_avg.parameters(), self.g.parameters()):
            a.lerp_(p.detach(), 0.05)
        return loss.item()

    @torch.no_grad()
    def preview(self):
        imgs = self.g_avg(self.fixed)
        score = self.d(imgs).sigmoid().mean().item()
        grid = imgs.view(10, 10, 32, 32).permute(0, 2, 1, 3).reshape(320, 320)
        self.sheet = ((grid + 1) * 127.5).to(torch.uint8)
        return score

    def step(self, i):
        dl = self.d_step(rings(BATCH, self.gen))
        gl = self.g_step()
        if self.rank == 0 and (i + 1) % self.preview_every == 0:
            self.preview()
        return dl, gl


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "preview_each_step"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    tr = Trainer(args.fault)
    log, ms = [], []
    for i in range(27):
        t = time.perf_counter()
        log.append(tr.step(i))
        ms.append((time.perf_counter() - t) * 1e3)
    check = torch.cat([p.detach().flatten() for p in tr.g.parameters()])
    other = check.clone()
    dist.broadcast(other, 0)
    assert torch.equal(check, other), "generators differ between ranks"
    if tr.rank == 0:
        assert log[-1][0] < log[0][0], "discriminator did not learn"
        print(f"d loss {log[0][0]:.3f} -> {log[-1][0]:.3f}, g loss {log[-1][1]:.3f}")
        print(f"mean step {sum(ms[2:]) / len(ms[2:]):.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
