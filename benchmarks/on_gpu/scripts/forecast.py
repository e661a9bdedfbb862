"""Electricity-load forecasting: channel-independent patch transformer, DDP + EMA of the weights."""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["ema_cpu", "impute_in_loop"], default=None)
parser.add_argument("--steps", type=int, default=60)
opts = parser.parse_args()

small = os.environ.get("SMALL") == "1"
on_gpu = torch.cuda.is_available()
CONTEXT, HORIZON, PATCH = (128, 32, 16) if small else (1024, 96, 16)
WINDOWS = 8 if small else 512            # 32 meters x 16 channels
DIM, DEPTH, NHEAD = (32, 2, 4) if small else (512, 8, 8)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, h):
        n, s, _ = h.shape
        q, k, v = self.qkv(self.ln1(h)).view(n, s, 3, NHEAD, -1).permute(2, 0, 3, 1, 4)
        h = h + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, s, DIM))
        return h + self.ff(self.ln2(h))


class PatchForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(PATCH, DIM)
        self.pos = nn.Parameter(torch.zeros(CONTEXT // PATCH, DIM))
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.head = nn.Linear(DIM, HORIZON)

    def forward(self, x):
        mu, sd = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-4
        h = self.embed(((x - mu) / sd).unfold(1, PATCH, PATCH)) + self.pos
        return self.head(self.layers(h).mean(1)) * sd + mu


class Loads:
    """Meter readings with gaps; a window is CONTEXT inputs followed by HORIZON targets."""

    def __init__(self, seed, clean_ahead):
        self.rng = np.random.default_rng(seed)
        t = np.arange(8 * CONTEXT)
        self.table = np.stack([np.sin(t / 24 * (1 + i % 5)) + 0.1 * self.rng.standard_normal(t.size) for i in range(64)]).astype(np.float32)
        self.table[self.rng.random(self.table.shape) < 0.02] = np.nan
        self.clean_ahead = clean_ahead
        if clean_ahead:
            for row in self.table:
                self.fill(row)
            self.dev = torch.from_numpy(self.table).to(device)
            self.span = torch.arange(CONTEXT + HORIZON, device=device)

    @staticmethod
    def fill(w):
        bad = np.isnan(w)
        if bad.any():
            idx = np.arange(w.size)
            w[bad] = np.interp(idx[bad], idx[~bad], w[~bad])
        return w

    def sample(self):
        rows = self.rng.integers(len(self.table), size=WINDOWS)
        starts = self.rng.integers(self.table.shape[1] - CONTEXT - HORIZON, size=WINDOWS)
        if self.clean_ahead:
            r, s = (torch.from_numpy(v).to(device, non_blocking=True) for v in (rows, starts))
            return self.dev[r[:, None], s[:, None] + self.span]
        out = []
        for r, s in zip(rows, starts):
            w = self.fill(self.table[r, s:s + CONTEXT + HORIZON].copy())
            w = np.convolve(w, np.full(5, 0.2, np.float32), "same")
            mid = np.median(w)
            spread = 6 * np.median(np.abs(w - mid))
            out.append(np.clip(w, mid - spread, mid + spread).astype(np.float32))
        return torch.from_numpy(np.stack(out)).to(device)


dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
device = torch.device("cpu")
if on_gpu:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)

torch.manual_seed(0)
net = PatchForecaster().to(device)
model = nn.parallel.DistributedDataParallel(net, device_ids=[device.index] if on_gpu else None, gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=on_gpu)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
params = list(net.parameters())
if opts.fault == "ema_cpu":
    # only rank 0 writes checkpoints, so only it keeps the average; in host memory, to save room on the GPU
    ema = [q.detach().cpu().clone() for q in params] if rank == 0 else None
else:
    ema = [q.detach().clone() for q in params]
data = Loads(rank, clean_ahead=opts.fault != "impute_in_loop")

tic = 0.0
for step in range(opts.steps):
    if step == opts.steps - 30:
        if on_gpu:
            torch.cuda.synchronize()
        tic = time.perf_counter()
    w = data.sample()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        forecast = model(w[:, :CONTEXT])
    loss = F.huber_loss(forecast.float(), w[:, CONTEXT:])
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    if opts.fault == "ema_cpu":
        if ema is not None:
            for e, q in zip(ema, params):
                e.lerp_(q.detach().cpu(), 0.001)
    else:
        torch._foreach_lerp_(ema, [q.detach() for q in params], 0.001)
    if step % 20 == 0 and rank == 0:
        print(f"{step:4d} huber {loss.item():.4f}", flush=True)

if on_gpu:
    torch.cuda.synchronize()
if rank == 0:
    print(json.dumps({"step_ms": 1e3 * (time.perf_counter() - tic) / 30}))
dist.destroy_process_group()
