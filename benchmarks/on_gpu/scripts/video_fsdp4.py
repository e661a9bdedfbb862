"""Action recognition with a tubelet transformer on four ranks, FSDP2 (full sharding), bf16."""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SMALL = os.environ.get("SMALL") == "1"
CLASSES = 100
DIM, DEPTH, HEADS = (32, 2, 2) if SMALL else (640, 10, 10)
CLIPS, FRAMES, SIDE, SOURCE = (2, 4, 32, (48, 64)) if SMALL else (20, 16, 112, (128, 171))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, DIM))
        return x + self.mlp(self.n2(x))


class VideoTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        tokens = (FRAMES // 2) * (SIDE // 16) ** 2
        self.patch = nn.Linear(3 * 2 * 16 * 16, DIM)
        self.pos = nn.Parameter(torch.zeros(tokens, DIM))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, CLASSES)

    def forward(self, clips):
        b = clips.shape[0]
        g = SIDE // 16
        x = clips.view(b, FRAMES // 2, 2, 3, g, 16, g, 16).permute(0, 1, 4, 6, 2, 3, 5, 7).reshape(b, -1, 3 * 2 * 256)
        x = self.patch(x) + self.pos
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.norm(x).mean(1))


class Clips:
    def __init__(self, rank, decode_in_loop):
        self.rng = np.random.default_rng(rank)
        self.raw = self.rng.integers(0, 256, (8, FRAMES, *SOURCE, 3), dtype=np.uint8)
        self.decode_in_loop = decode_in_loop
        if not decode_in_loop:                                    # decoded crops, prepared ahead by the loader
            self.ready = [torch.from_numpy(self.assemble(light=True)) for _ in range(4)]
            if torch.cuda.is_available():
                self.ready = [t.pin_memory() for t in self.ready]

    def augment(self, frame, y, x, flip, gain):
        crop = frame[y:y + SIDE, x:x + SIDE]
        if flip:
            crop = crop[:, ::-1]
        crop = crop.astype(np.float32)
        mid = crop.mean()
        return np.clip((crop - mid) * np.float32(gain) + mid, 0, 255).astype(np.uint8).transpose(2, 0, 1)

    def assemble(self, light=False):
        batch = np.empty((CLIPS, FRAMES, 3, SIDE, SIDE), np.uint8)
        for c in range(CLIPS):
            video = self.raw[self.rng.integers(len(self.raw))]
            y, x = self.rng.integers(SOURCE[0] - SIDE + 1), self.rng.integers(SOURCE[1] - SIDE + 1)
            flip, gain = self.rng.random() < 0.5, self.rng.uniform(0.8, 1.2)
            for f in range(FRAMES):
                if light:
                    batch[c, f] = video[f, y:y + SIDE, x:x + SIDE].transpose(2, 0, 1)
                else:
                    batch[c, f] = self.augment(video[f], y, x, flip, gain)
        return batch

    def get(self, step, device):
        if self.decode_in_loop:
            return torch.from_numpy(self.assemble()).to(device)
        return self.ready[step % 4].to(device, non_blocking=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["fp32_shards", "augment_in_loop"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    mesh = init_device_mesh(device.type, (world,))
    torch.manual_seed(0)
    model = VideoTransformer().to(device)
    if args.fault == "fp32_shards":
        policy = MixedPrecisionPolicy()                           # autocast takes care of the precision
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for blk in model.blocks:
        fully_shard(blk, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300)
    clips = Clips(rank, decode_in_loop=args.fault == "augment_in_loop" and rank == 3)
    labels = torch.randint(CLASSES, (4, CLIPS), generator=torch.Generator().manual_seed(rank)).to(device)
    mean = 127.0
    t0 = 0.0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x = (clips.get(step, device).float() - mean) / 64.0
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), labels[step % 4], label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if step % 20 == 0 and rank == 0:
            acc = (logits.detach().argmax(1) == labels[step % 4]).float().mean()
            print(f"step {step} loss {loss.item():.4f} acc {acc.item():.3f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
