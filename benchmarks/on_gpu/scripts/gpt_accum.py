"""GPT pre-training with DDP and gradient accumulation; documents are tokenised and packed in the training process."""
import argparse
import contextlib
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SMALL = os.environ.get("SMALL") == "1"
if SMALL:
    CFG = dict(vocab=256, dim=32, layers=2, heads=2, seq=32, micro=2, accum=4)
else:
    CFG = dict(vocab=16384, dim=512, layers=8, heads=8, seq=512, micro=8, accum=4)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok = nn.Embedding(c["vocab"], c["dim"])
        self.pos = nn.Embedding(c["seq"], c["dim"])
        self.blocks = nn.ModuleList(Block(c["dim"], c["heads"]) for _ in range(c["layers"]))
        self.norm = nn.LayerNorm(c["dim"])
        self.head = nn.Linear(c["dim"], c["vocab"], bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids, labels):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        for blk in self.blocks:
            x = blk(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Packer:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        words = [f"w{i}" for i in range(CFG["vocab"] * 2)]
        self.vocab = {w: i for i, w in enumerate(words[: CFG["vocab"] - 2], start=2)}
        self.docs = [" ".join(self.rng.choices(words, k=self.rng.randint(40, 400))) for _ in range(600)]
        self.buf = []

    def next(self, n, seq):
        need = n * (seq + 1)
        while len(self.buf) < need:
            for w in self.rng.choice(self.docs).split():
                if self.rng.random() > 0.02:  # word dropout
                    self.buf.append(self.vocab.get(w, 1))
            self.buf.append(0)
        t = torch.tensor(self.buf[:need]).view(n, seq + 1)
        self.buf = self.buf[need:]
        return t


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["always_sync", "log_every_micro"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", local % torch.cuda.device_count()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(GPT(CFG).to(device), device_ids=[device.index] if cuda else None,
                                  gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(ddp.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=cuda)
    packer = Packer(rank)
    accum = CFG["accum"]
    running, log = 0.0, open(os.devnull if rank else "/tmp/gpt_accum_train.log", "w")
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter()
        total = torch.zeros((), device=device)
        for micro in range(accum):
            batch = packer.next(CFG["micro"], CFG["seq"])
            if cuda:
                batch = batch.pin_memory().to(device, non_blocking=True)
            last = micro == accum - 1
            ctx = contextlib.nullcontext() if last or args.fault == "always_sync" else ddp.no_sync()
            with ctx:
                with torch.autocast(device.type, dtype=torch.bfloat16):
                    loss = ddp(batch[:, :-1], batch[:, 1:]) / accum
                loss.backward()
            if args.fault == "log_every_micro":
                running = 0.98 * running + 0.02 * loss.item() * accum
                log.write(f"{step}.{micro} loss={loss.item() * accum:.4f} avg={running:.4f}\n")
                log.flush()
            total += loss.detach()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 25 == 0:
            dist.all_reduce(total, op=dist.ReduceOp.SUM)
            log.write(f"{step} loss={total.item() / dist.get_world_size():.4f}\n")
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - start) / 30 * 1e3}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
