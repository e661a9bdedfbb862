"""Image classification, bottleneck ResNet, DDP + bf16 + channels_last, uint8 batches staged through pinned memory."""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["float_pageable", "unresized_shard"])
ap.add_argument("--steps", type=int, default=60)
args = ap.parse_args()

SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
RANK, LOCAL = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", LOCAL % torch.cuda.device_count()) if CUDA else torch.device("cpu")
if CUDA:
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
dist.init_process_group("nccl" if CUDA else "gloo")

IMG, BATCH, WIDTH, DEPTH = (32, 4, 8, (1, 1, 1, 1)) if SMALL else (176, 64, 64, (3, 4, 6, 3))
CLASSES = 10 if SMALL else 1000
MEAN = np.array([123.7, 116.3, 103.5], np.float32).reshape(3, 1, 1)
STD = np.array([58.4, 57.1, 57.4], np.float32).reshape(3, 1, 1)


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        out = mid * 4
        self.f = nn.Sequential(
            nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid), nn.ReLU(inplace=True),
            nn.Conv2d(mid, out, 1, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Identity() if cin == out and stride == 1 else nn.Sequential(
            nn.Conv2d(cin, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.f(x) + self.short(x))


def resnet():
    layers = [nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    cin = WIDTH
    for i, n in enumerate(DEPTH):
        for j in range(n):
            layers.append(Bottleneck(cin, WIDTH * 2 ** i, 2 if i and j == 0 else 1))
            cin = WIDTH * 2 ** i * 4
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, CLASSES))


class Shard:
    """This rank's records. Records already at training size are cropped by slicing, larger ones are resized on the fly."""

    def __init__(self, n, unresized):
        rng = np.random.default_rng(RANK)
        sides = [2 * IMG + 40 if unresized and i % 6 == 0 else IMG + 16 for i in range(n)]
        self.images = [rng.integers(0, 256, (s, s, 3), dtype=np.uint8) for s in sides]
        self.labels = rng.integers(0, CLASSES, n)
        self.rng = rng

    def sample(self, i):
        im = self.images[i]
        if im.shape[0] > IMG + 16:  # bilinear resize down to IMG+16
            pos = np.linspace(0, im.shape[0] - 1.001, IMG + 16, dtype=np.float32)
            lo = pos.astype(np.int64)
            w = (pos - lo)[:, None, None]
            rows = im[lo] * (1 - w) + im[lo + 1] * w
            w = (pos - lo)[None, :, None]
            im = (rows[:, lo] * (1 - w) + rows[:, lo + 1] * w).astype(np.uint8)
        y, x = self.rng.integers(0, 16, 2)
        im = im[y:y + IMG, x:x + IMG]
        return im[:, ::-1] if self.rng.random() < 0.5 else im

    def batch(self, step):
        idx = [(step * BATCH + k) % len(self.images) for k in range(BATCH)]
        return np.stack([self.sample(i) for i in idx]), self.labels[idx]


shard = Shard(4 * BATCH, unresized=args.fault == "unresized_shard" and RANK == 1)
model = resnet().to(device, memory_format=torch.channels_last)
model = DDP(model, device_ids=[device.index] if CUDA else None, broadcast_buffers=False, gradient_as_bucket_view=True)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
staging = [torch.empty(BATCH, IMG, IMG, 3, dtype=torch.uint8, pin_memory=CUDA) for _ in range(4)]
copied = [torch.cuda.Event() for _ in staging] if CUDA else None
gmean, gstd = torch.from_numpy(MEAN).to(device), torch.from_numpy(STD).to(device)


def fetch(step):
    images, labels = shard.batch(step)
    if args.fault == "float_pageable":
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float()
        return (x.to(device) - gmean) / gstd, torch.from_numpy(labels).to(device)
    buf = staging[step % 4]
    if CUDA and step >= 4:
        copied[step % 4].synchronize()
    buf.copy_(torch.from_numpy(images))
    x = buf.to(device, non_blocking=True)
    y = torch.from_numpy(labels)
    y = (y.pin_memory() if CUDA else y).to(device, non_blocking=True)
    if CUDA:
        copied[step % 4].record()
    return (x.permute(0, 3, 1, 2).float() - gmean) / gstd, y


for step in range(args.steps):
    if step == args.steps - 30:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    x, y = fetch(step)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).float(), y, label_smoothing=0.1)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 50 == 0 and RANK == 0:
        print(f"step {step} loss {loss.item():.3f}", flush=True)
if CUDA:
    torch.cuda.synchronize()
if RANK == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
dist.destroy_process_group()
