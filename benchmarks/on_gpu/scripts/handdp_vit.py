"""ViT classifier with data parallelism written by hand: flat gradient buckets, all_reduce launched from autograd hooks."""
import json
import os
import sys
import time
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

SMALL = bool(int(os.environ.get("SMALL", "0")))
CUDA = torch.cuda.is_available()


class EncoderBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln_a, self.ln_m = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln_a(x)).reshape(B, T, 3, self.h, -1).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v)
        x = x + self.o(a.transpose(1, 2).reshape(B, T, C))
        return x + self.fc2(F.gelu(self.fc1(self.ln_m(x))))


class ViT(nn.Module):
    def __init__(self, img, patch, d, depth, h, classes):
        super().__init__()
        self.embed = nn.Conv2d(3, d, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (img // patch) ** 2, d) * 0.02)
        self.blocks = nn.Sequential(*[EncoderBlock(d, h) for _ in range(depth)])
        self.ln = nn.LayerNorm(d)
        self.fc = nn.Linear(d, classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        return self.fc(self.ln(self.blocks(x)).mean(1))


class Bucket:
    def __init__(self, params):
        self.params = params
        self.flat = torch.zeros(sum(p.numel() for p in params), device=params[0].device)
        off = 0
        for p in params:
            p.grad = self.flat[off:off + p.numel()].view_as(p)
            off += p.numel()
        self.pending, self.work = len(params), None


class BucketReducer:
    """Averages gradients over the ranks while backward is still running."""

    def __init__(self, params, cap_mb=25, wait_in_hook=False):
        self.world = dist.get_world_size()
        self.wait_in_hook = wait_in_hook
        self.buckets, cur, size = [], [], 0
        for p in reversed(params):  # roughly the order in which backward produces them
            cur.append(p)
            size += p.numel() * 4
            if size >= cap_mb << 20:
                self.buckets.append(Bucket(cur))
                cur, size = [], 0
        if cur:
            self.buckets.append(Bucket(cur))
        for b in self.buckets:
            for p in b.params:
                p.register_post_accumulate_grad_hook(lambda _, b=b: self._ready(b))

    def _ready(self, b):
        b.pending -= 1
        if b.pending == 0:
            b.flat.div_(self.world)
            b.work = dist.all_reduce(b.flat, async_op=True)
            if self.wait_in_hook:  # keep the flat buffer safe to read from here on
                b.work.wait()

    def finish(self):
        for b in self.buckets:
            b.work.wait()
            b.pending = len(b.params)

    def zero(self):
        torch._foreach_zero_([b.flat for b in self.buckets])


def average_gradients(params):
    world = dist.get_world_size()
    for p in params:
        if p.grad is not None:
            dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
            p.grad /= world


def main(argv):
    ap = ArgumentParser()
    ap.add_argument("--fault", choices=["per_param", "wait_in_hook"])
    ap.add_argument("--steps", type=int, default=60)
    a = ap.parse_args(argv)
    rank = int(os.environ["RANK"])
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = "cuda" if CUDA else "cpu"
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)
    img, batch = (32, 4) if SMALL else (224, 48)
    model = ViT(32, 16, 48, 2, 4, 10) if SMALL else ViT(224, 16, 768, 10, 12, 1000)
    model.to(dev)
    params = list(model.parameters())
    for p in params:
        dist.broadcast(p.data, 0)
    opt = torch.optim.AdamW(params, lr=1e-4, fused=CUDA)
    reducer = None if a.fault == "per_param" else BucketReducer(params, 25, a.fault == "wait_in_hook")

    torch.manual_seed(rank + 1)
    host = [(torch.randn(batch, 3, img, img), torch.randint(0, 10, (batch,))) for _ in range(4)]
    if CUDA:
        host = [(x.pin_memory(), y.pin_memory()) for x, y in host]
    for step in range(a.steps):
        if step == a.steps - 30:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x, y = (t.to(dev, non_blocking=True) for t in host[step % 4])
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
        if reducer is None:
            opt.zero_grad(set_to_none=False)
            loss.backward()
            average_gradients(params)
        else:
            reducer.zero()
            loss.backward()
            reducer.finish()
        opt.step()
    if CUDA:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
