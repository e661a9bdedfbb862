"""Masked-LM pretraining of a small BERT on four ranks, DDP with bf16-compressed gradients."""
import argparse
import json
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
VOCAB, DIM, DEPTH, HEADS = (400, 32, 2, 2) if SMALL else (12000, 640, 8, 10)
BATCH, SEQ, MASKED = (4, 32, 5) if SMALL else (28, 256, 40)
MASK, PAD = 3, 0


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.fc1, self.fc2 = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v)
        x = self.ln1(x + self.out(a.transpose(1, 2).reshape(b, s, DIM)))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.ln = nn.LayerNorm(DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.dense, self.head_ln = nn.Linear(DIM, DIM), nn.LayerNorm(DIM)
        self.bias = nn.Parameter(torch.zeros(VOCAB))
        nn.init.normal_(self.word.weight, std=0.02)

    def forward(self, ids, where):
        x = self.ln(self.word(ids) + self.pos.weight)
        for layer in self.layers:
            x = layer(x)
        x = x.gather(1, where[..., None].expand(-1, -1, DIM))          # only the masked positions
        return F.linear(self.head_ln(F.gelu(self.dense(x))), self.word.weight, self.bias)


def token_masking(ids, device):
    """Uniform masking on the device."""
    where = torch.rand(ids.shape, device=device).topk(MASKED, 1).indices
    labels = ids.gather(1, where)
    return ids.scatter(1, where, MASK), where, labels


def whole_word_masking(lines, ids_of, rng, device):
    """Whole-word masking as in the reference preprocessing: group the pieces of a word, mask whole groups."""
    all_ids, all_where, all_labels = [], [], []
    for line in lines:
        groups, row = [], []
        for i, piece in enumerate(line.split()):
            row.append(ids_of.get(piece, 1))
            if row[i] == PAD:
                continue
            if not piece.startswith("##") or not groups:
                groups.append([i])
            else:
                groups[-1].append(i)
        rng.shuffle(groups)
        picked, covered = [], set()
        for g in groups:
            if len(picked) >= MASKED:
                break
            if len(picked) + len(g) > MASKED or any(i in covered for i in g):
                continue
            for i in g:
                covered.add(i)
                picked.append(i)
        while len(picked) < MASKED:
            i = rng.randrange(SEQ)
            if i not in covered:
                covered.add(i)
                picked.append(i)
        picked.sort()
        ids, labels = list(row), []
        for i in range(SEQ):
            if i in covered:
                labels.append(row[i])
                r = rng.random()
                ids[i] = MASK if r < 0.8 else (rng.randrange(4, VOCAB) if r < 0.9 else row[i])
        all_ids.append(ids)
        all_where.append(picked)
        all_labels.append(labels)
    return [torch.tensor(v).to(device) for v in (all_ids, all_where, all_labels)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["fp32_grads", "one_bucket", "whole_word"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    model = Bert().to(device)
    torch.manual_seed(100 + rank)
    ddp = DDP(model, device_ids=[device.index] if cuda else None, gradient_as_bucket_view=True,
              bucket_cap_mb=1024 if args.fault == "one_bucket" else 25)
    if cuda and args.fault != "fp32_grads":
        ddp.register_comm_hook(None, bf16_compress_hook)
    decay = [q for q in model.parameters() if q.ndim > 1]
    plain = [q for q in model.parameters() if q.ndim <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=1e-4, fused=cuda)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 20, 1.0))
    corpus = torch.randint(4, VOCAB, (4 * BATCH, SEQ), generator=torch.Generator().manual_seed(rank))
    rng = random.Random(rank)
    vocab = [f"w{i}" if i % 10 < 7 else f"##{i}" for i in range(VOCAB)]
    ids_of = {piece: i for i, piece in enumerate(vocab)}
    lines = [" ".join(vocab[i] for i in row) for row in corpus.tolist()]
    if cuda:
        corpus = corpus.pin_memory()
    # the node of rank 2 runs a newer data image, with whole-word masking done on the fly
    on_the_fly = args.fault == "whole_word" and rank == 2
    t0 = 0.0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        lo = step % 4 * BATCH
        if on_the_fly:
            ids, where, labels = whole_word_masking(lines[lo:lo + BATCH], ids_of, rng, device)
        else:
            ids, where, labels = token_masking(corpus[lo:lo + BATCH].to(device, non_blocking=True), device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = ddp(ids, where)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if norm.item() < 100.0:                     # skip the step on a spike
            opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if step % 20 == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} mlm {mean.item() / world:.4f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
