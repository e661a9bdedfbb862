"""Cross-encoder reranker: query+passage pairs, listwise loss over 4 candidates, DDP with bf16 gradients."""
import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
VOCAB, DIM, DEPTH, HEADS = (300, 32, 2, 4) if SMALL else (8000, 768, 8, 12)
QUERIES, CANDS = (4, 4) if SMALL else (16, 4)
LENGTHS = (8, 40) if SMALL else (64, 260)


class CrossEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(512, DIM)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)
        self.score = nn.Linear(DIM, 1)

    def forward(self, ids):
        h = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        return self.score(self.enc(h)[:, 0]).squeeze(-1)


class Pairs:
    """Batches of equal-length pairs (bucketed): QUERIES * CANDS sequences, the first candidate is relevant."""

    def __init__(self, rank, world, n, contiguous, device):
        rng = np.random.default_rng(7)
        lens = np.sort(rng.integers(*LENGTHS, size=n * world) // 8 * 8)     # the preprocessing job writes them by length
        if contiguous:
            mine = lens[rank * n:(rank + 1) * n]
        else:
            mine = lens[rank::world]
        mine = mine[np.random.default_rng(1).permutation(n)]
        gen = torch.Generator().manual_seed(rank)
        self.batches = []
        for length in mine:
            ids = torch.randint(2, VOCAB, (QUERIES * CANDS, int(length)), generator=gen)
            ids[::CANDS, 1:3] = 1
            self.batches.append(ids.pin_memory() if device.type == "cuda" else ids)
        self.device = device

    def __getitem__(self, i):
        return self.batches[i % len(self.batches)].to(self.device, non_blocking=True)


def ndcg(scores):
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    gains = [1.0 if i == 0 else 0.0 for i in order]
    ideal = sorted(gains, reverse=True)
    dcg = sum(g / math.log2(r + 2) for r, g in enumerate(gains))
    return dcg / sum(g / math.log2(r + 2) for r, g in enumerate(ideal))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["sorted_shards", "running_ndcg"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = CrossEncoder().to(device)
    ddp = DDP(model, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True)
    if cuda:
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=cuda)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=20)
    data = Pairs(rank, world, 48, contiguous=args.fault == "sorted_shards", device=device)
    target = torch.zeros(QUERIES, dtype=torch.long, device=device)
    seen = []
    t0 = 0.0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids = data[step]
        with torch.autocast(device.type, dtype=torch.bfloat16):
            scores = ddp(ids)
        scores = scores.float().view(QUERIES, CANDS)
        loss = F.cross_entropy(scores, target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        warm.step()
        if args.fault == "running_ndcg":
            seen.extend({"query": step * QUERIES + i, "scores": s} for i, s in enumerate(scores.tolist()))
            everyone = [None] * world
            dist.all_gather_object(everyone, seen)
            value = np.mean([ndcg(r["scores"]) for part in everyone for r in part])
            if rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f} ndcg {value:.4f}", flush=True)
        elif step % 20 == 0:
            rr = (1.0 / (1 + (scores.detach()[:, 1:] > scores.detach()[:, :1]).sum(1).float())).mean()
            dist.all_reduce(rr)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} mrr {rr.item() / world:.4f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
