"""Sequential recommendation (SASRec-like), data parallel written by hand on top of autograd hooks."""
import argparse
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

small = os.environ.get("SMALL") == "1"
ITEMS, DIM, DEPTH, HEADS = (500, 32, 2, 2) if small else (30000, 512, 6, 8)
BATCH, SEQ, NEG = (4, 20, 32) if small else (96, 200, 4096)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.w1, self.w2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, DIM))
        return x + self.w2(F.gelu(self.w1(self.n2(x))))


class SASRec(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.pos = nn.Parameter(torch.zeros(SEQ, DIM))
        self.layers = nn.Sequential(*[Layer() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(DIM)
        nn.init.normal_(self.items.weight, std=0.02)

    def forward(self, seq, negatives):
        h = self.norm(self.layers(self.items(seq[:, :-1]) + self.pos))
        positive = (h * self.items(seq[:, 1:])).sum(-1, keepdim=True)
        return torch.cat([positive.float(), (h @ self.items(negatives).t()).float()], -1)


class BucketReducer:
    """Sums gradients over the ranks in buckets, as soon as a bucket's gradients are there."""

    def __init__(self, params, cap_bytes=16 << 20):
        self.buckets, size = [[]], 0
        for q in reversed(list(params)):
            if size and size + q.numel() * 4 > cap_bytes:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(q)
            size += q.numel() * 4
        self.where = {q: i for i, b in enumerate(self.buckets) for q in b}
        self.left = [len(b) for b in self.buckets]
        self.flying = []
        for q in self.where:
            q.register_post_accumulate_grad_hook(self.ready)

    def ready(self, q):
        i = self.where[q]
        self.left[i] -= 1
        if self.left[i] == 0:
            grads = [p.grad for p in self.buckets[i]]
            flat = grads[0].view(-1) if len(grads) == 1 else torch.cat([g.reshape(-1) for g in grads])
            self.flying.append((dist.all_reduce(flat, async_op=True), flat, grads))

    def finish(self):
        world = dist.get_world_size()
        for work, flat, grads in self.flying:
            work.wait()
            flat.div_(world)
            if len(grads) > 1:
                torch._foreach_copy_(grads, [c.view_as(g) for c, g in zip(flat.split([g.numel() for g in grads]), grads)])
        self.flying.clear()
        self.left = [len(b) for b in self.buckets]


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def unseen_items(histories, rng):
    """For every position one item that its user never touched, then the pool shared by the batch."""
    pool = []
    for history in histories:
        seen = set(history)
        for _ in range(len(history)):
            item = rng.randint(1, ITEMS - 1)
            while item in seen:
                item = rng.randint(1, ITEMS - 1)
            pool.append(item)
    return torch.tensor(rng.sample(pool, min(NEG, len(pool))))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["per_param_reduce", "python_negatives"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = SASRec().to(device)
    for t in model.parameters():
        dist.broadcast(t.data, 0)
    reducer = BucketReducer(model.parameters()) if args.fault != "per_param_reduce" else None
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=cuda)
    rng = random.Random(rank)
    users = torch.randint(1, ITEMS, (8 * BATCH, SEQ + 1), generator=torch.Generator().manual_seed(rank))
    users[:, 1::2] = (users[:, 0::2][:, : users[:, 1::2].shape[1]] + 1) % ITEMS
    lists = users.tolist()
    if cuda:
        users = users.pin_memory()
    skipped, t0 = 0, 0.0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        lo = step % 8 * BATCH
        seq = users[lo:lo + BATCH].to(device, non_blocking=True)
        if args.fault == "python_negatives":
            negatives = unseen_items(lists[lo:lo + BATCH], rng).to(device)
        else:
            negatives = torch.randint(1, ITEMS, (NEG,), device=device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = model(seq, negatives)
        loss = F.cross_entropy(logits.flatten(0, 1), torch.zeros(logits.shape[0] * logits.shape[1], dtype=torch.long, device=device))
        loss.backward()
        if reducer is not None:
            reducer.finish()
        else:
            average_gradients(model)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        if bool(torch.isfinite(norm)):
            opt.step()
        else:
            skipped += 1
        opt.zero_grad(set_to_none=True)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f} skipped {skipped}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
