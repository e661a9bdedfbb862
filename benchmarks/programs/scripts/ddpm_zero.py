"""Denoising diffusion on small textures: DDP + ZeroRedundancyOptimizer + EMA.

    torchrun --nproc-per-node 2 ddpm_zero.py [--fault frequent_checkpoint]

The run keeps an exponential moving average of the weights.  A checkpoint (weights
and average) is written by rank 0 every `--save-every` steps, 200 by default, with
fsync and atomic rename.  --fault frequent_checkpoint sets the interval to 3, as in
a smoke test whose configuration found its way into the real run.
"""

import argparse
import copy
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

T_MAX = 200


class ResBlock(nn.Module):
    def __init__(self, ch, emb):
        super().__init__()
        self.c1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.c2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.t = nn.Linear(emb, ch)

    def forward(self, x, e):
        h = self.c1(F.silu(x)) + self.t(e)[:, :, None, None]
        return x + self.c2(F.silu(h))


class Denoiser(nn.Module):
    def __init__(self, ch=24, wide=144, emb=64):
        super().__init__()
        self.emb = emb
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.a = ResBlock(ch, emb)
        self.down = nn.Conv2d(ch, wide, 4, stride=4)
        self.mid = nn.ModuleList(ResBlock(wide, emb) for _ in range(4))
        self.up = nn.ConvTranspose2d(wide, ch, 4, stride=4)
        self.b = ResBlock(ch, emb)
        self.out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        freq = torch.exp(-math.log(1e4) * torch.arange(self.emb // 2) / (self.emb // 2))
        ang = t[:, None].float() * freq
        e = self.time(torch.cat([ang.sin(), ang.cos()], -1))
        h = self.a(self.inp(x), e)
        m = self.down(h)
        for blk in self.mid:
            m = blk(m, e)
        return self.out(self.b(h + self.up(m), e))


def textures(n, g):
    phase = torch.rand(n, 1, 1, generator=g) * 6.28
    k = torch.randint(1, 4, (n, 1, 1), generator=g)
    ax = torch.arange(16) / 16 * 6.28
    return (torch.sin(k * ax[None, None, :] + phase) * torch.cos(k * ax[None, :, None]))[:, None]


@torch.no_grad()
def update_ema(ema, model, decay=0.99):
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1 - decay)


def save(path, step, model, ema):
    tmp = path + ".tmp"
    with open(tmp, "wb") as f:
        torch.save({"step": step, "model": model.state_dict(), "ema": ema.state_dict()}, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(tmp, path)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["none", "frequent_checkpoint"], default="none")
    ap.add_argument("--save-every", type=int, default=200)
    opts = ap.parse_args()
    if opts.fault == "frequent_checkpoint":
        opts.save_every = 3
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Denoiser()
    ema = copy.deepcopy(net).requires_grad_(False)
    ddp = DDP(net)
    opt = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    alpha = torch.cos(torch.linspace(0, 1, T_MAX) * math.pi / 2).clamp(1e-3)
    g = torch.Generator().manual_seed(7 + rank)
    workdir = tempfile.mkdtemp(prefix="ddpm_") if rank == 0 else None

    losses, times = [], []
    for step in range(1, 28):
        tic = time.perf_counter()
        x0 = textures(8, g)
        t = torch.randint(0, T_MAX, (8,), generator=g)
        eps = torch.randn(x0.shape, generator=g)
        a = alpha[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(ddp(a * x0 + (1 - a * a).sqrt() * eps, t), eps)
        opt.zero_grad()
        loss.backward()
        opt.step()
        update_ema(ema, net)
        if step % opts.save_every == 0 and rank == 0:
            save(os.path.join(workdir, "last.pt"), step, net, ema)
        losses.append(loss.item())
        times.append(time.perf_counter() - tic)
    dist.barrier()
    if rank == 0:
        save(os.path.join(workdir, "last.pt"), step, net, ema)
        back = torch.load(os.path.join(workdir, "last.pt"))
        assert back["step"] == step
        os.remove(os.path.join(workdir, "last.pt"))
        os.rmdir(workdir)
        assert sum(losses[-5:]) < sum(losses[:5])
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        print(f"mean step {sum(times[2:]) / len(times[2:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
