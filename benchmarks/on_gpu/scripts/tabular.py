"""Credit-default model: feature-tokenizer transformer over 32 categorical and 128 numeric columns, DDP."""
import argparse
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

SMALL = os.environ.get("SMALL") == "1"
CATS, NUMS, CARD = (4, 8, 10) if SMALL else (32, 128, 50)
DIM, DEPTH, HEADS, ROWS = (16, 2, 2, 16) if SMALL else (256, 4, 8, 768)


class FusedTokenizer(nn.Module):
    """All categorical columns in one table with offsets, all numeric ones in one affine map."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CATS * CARD, DIM)
        self.register_buffer("offset", torch.arange(CATS) * CARD, persistent=False)
        self.scale, self.shift = nn.Parameter(torch.randn(NUMS, DIM) * 0.1), nn.Parameter(torch.zeros(NUMS, DIM))

    def forward(self, cat, num):
        return torch.cat([self.table(cat + self.offset), num[..., None] * self.scale + self.shift], 1)


class ColumnTokenizer(nn.Module):
    """One small module per column."""

    def __init__(self):
        super().__init__()
        self.cats = nn.ModuleList(nn.Embedding(CARD, DIM) for _ in range(CATS))
        self.nums = nn.ModuleList(nn.Linear(1, DIM) for _ in range(NUMS))

    def forward(self, cat, num):
        tokens = [emb(cat[:, i]) for i, emb in enumerate(self.cats)]
        for i, lin in enumerate(self.nums):
            tokens.append(torch.tanh(lin(num[:, i:i + 1])))
        return torch.stack(tokens, 1)


class FTTransformer(nn.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True) for _ in range(DEPTH))
        self.out = nn.Linear(DIM, 1)

    def forward(self, cat, num):
        x = torch.cat([self.cls.expand(len(cat), -1, -1), self.tokenizer(cat, num)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.out(x[:, 0]).squeeze(-1)


class Table:
    """Rows are numeric arrays; a partition that was not converted yet is kept as CSV lines."""

    def __init__(self, seed, csv, device):
        rng = np.random.default_rng(seed)
        n = 2 * ROWS
        self.device, self.csv = device, csv
        self.cat = rng.integers(CARD, size=(n, CATS))
        self.num = rng.standard_normal((n, NUMS)).astype(np.float32)
        self.y = (self.num[:, :4].sum(1) + 0.2 * self.cat[:, 0] > 5).astype(np.float32)
        self.codes = [{f"c{c}_{v}": v for v in range(CARD)} for c in range(CATS)]
        if csv:
            self.lines = [",".join([f"c{c}_{v}" for c, v in enumerate(row)] + [f"{v:.6f}" for v in nums] + [str(int(y))])
                          for row, nums, y in zip(self.cat, self.num, self.y)]
        else:
            self.tensors = [torch.from_numpy(a) for a in (self.cat, self.num, self.y)]
            if device.type == "cuda":
                self.tensors = [t.pin_memory() for t in self.tensors]

    def batch(self, step):
        lo = step % 2 * ROWS
        if not self.csv:
            return [t[lo:lo + ROWS].to(self.device, non_blocking=True) for t in self.tensors]
        cat, num, y = [], [], []
        for line in self.lines[lo:lo + ROWS]:
            fields = line.split(",")
            cat.append([self.codes[c].get(fields[c], 0) for c in range(CATS)])
            num.append([min(float(v or 0), 5.0) for v in fields[CATS:-1]])
            y.append(float(fields[-1]))
        arrays = np.array(cat), np.array(num, np.float32), np.array(y, np.float32)
        return [torch.from_numpy(a).to(self.device) for a in arrays]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["per_column", "csv_partition"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = FTTransformer(ColumnTokenizer() if args.fault == "per_column" else FusedTokenizer()).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None, broadcast_buffers=False, gradient_as_bucket_view=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5, fused=cuda)
    table = Table(rank, csv=args.fault == "csv_partition" and rank == 0, device=device)
    hits, loss_sum, t0 = torch.zeros((), device=device), torch.zeros((), device=device), 0.0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        cat, num, y = table.batch(step)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logit = ddp(cat, num)
        loss = F.binary_cross_entropy_with_logits(logit.float(), y)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        hits += ((logit.detach() > 0) == (y > 0.5)).float().mean()
        loss_sum += loss.detach()
        if step % 20 == 19:
            report = torch.stack([loss_sum, hits]) / 20
            dist.all_reduce(report)
            if rank == 0:
                l, acc = (report / dist.get_world_size()).tolist()
                print(f"step {step + 1} loss {l:.4f} acc {acc:.3f}", flush=True)
            loss_sum.zero_(), hits.zero_()
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
