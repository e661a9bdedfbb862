"""Mixer over long sensor windows (large fp32 inputs); a loader thread uploads batches on its own stream, two ahead."""
import argparse
import json
import os
import queue
import random
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
BATCH, TIME, CHANNELS, DIM, DEPTH = (4, 16, 32, 16, 2) if SMALL else (256, 128, 1024, 512, 6)


class MixerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.time = nn.Sequential(nn.Linear(TIME, 2 * TIME), nn.GELU(), nn.Linear(2 * TIME, TIME))
        self.chan = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x):
        x = x + self.time(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.n2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(CHANNELS, DIM)
        self.blocks = nn.Sequential(*[MixerBlock() for _ in range(DEPTH)])
        self.out = nn.Linear(DIM, 12)

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)).mean(1))


class Shards:
    """Recordings on disk, `per_shard` batches each; a shard is read when its first batch is asked for."""

    def __init__(self, rank, open_seconds, per_shard=5):
        self.rng, self.open_seconds, self.per_shard = random.Random(rank), open_seconds, per_shard
        g = torch.Generator().manual_seed(rank)
        self.pages = [torch.empty(BATCH, TIME, CHANNELS, pin_memory=CUDA).normal_(generator=g) for _ in range(4)]
        self.labels = [torch.randint(0, 12, (BATCH,), generator=g) for _ in range(4)]
        self.labels = [t.pin_memory() for t in self.labels] if CUDA else self.labels

    def get(self, n):
        if n % self.per_shard == 0 and self.open_seconds:
            time.sleep(self.open_seconds * self.rng.uniform(0.8, 1.2))  # cold read from the shared filesystem
        return self.pages[n % 4], self.labels[n % 4]


class Loader(threading.Thread):
    def __init__(self, shards, steps, device, upload):
        super().__init__(daemon=True)
        self.shards, self.steps, self.device, self.upload = shards, steps, device, upload and CUDA
        self.q = queue.Queue(maxsize=2)
        self.stream = torch.cuda.Stream(device) if self.upload else None

    def run(self):
        if CUDA:
            torch.cuda.set_device(self.device)
        for n in range(self.steps):
            x, y = self.shards.get(n)
            done = None
            if self.upload:
                with torch.cuda.stream(self.stream):
                    x = x.to(self.device, non_blocking=True)
                    y = y.to(self.device, non_blocking=True)
                    done = torch.cuda.Event()
                    done.record(self.stream)
            self.q.put((x, y, done))

    def next(self):
        x, y, done = self.q.get()
        if done is None:
            return x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)
        cur = torch.cuda.current_stream()
        cur.wait_event(done)
        x.record_stream(cur)
        y.record_stream(cur)
        return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["copy_on_compute_stream", "cold_storage"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    rank = int(os.environ["RANK"])
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
    dist.init_process_group("nccl" if CUDA else "gloo")
    torch.manual_seed(0)
    net = DDP(Net().to(dev), device_ids=[dev.index] if CUDA else None, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=CUDA)
    cold = args.fault == "cold_storage" and rank == 1
    loader = Loader(Shards(rank, (0.05 if SMALL else 0.2) if cold else 0.0), args.steps, dev,
                    upload=args.fault != "copy_on_compute_stream")
    loader.start()
    inflight = []
    for step in range(args.steps):
        if step == args.steps - 30:
            if CUDA:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        x, y = loader.next()
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x).float(), y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if CUDA:  # at most two steps in flight, so that uploaded batches do not pile up
            ev = torch.cuda.Event()
            ev.record()
            inflight.append(ev)
            if len(inflight) > 2:
                inflight.pop(0).synchronize()
    if CUDA:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
    loader.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
