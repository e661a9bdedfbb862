"""CLIP-style image/text contrastive training; embeddings of all ranks are gathered for the loss (four ranks)."""
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

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["gather_tokens", "caption_objects"])
ap.add_argument("--steps", type=int, default=60)
args = ap.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if CUDA:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
DEV = torch.device("cuda", torch.cuda.current_device()) if CUDA else torch.device("cpu")
dist.init_process_group("nccl" if CUDA else "gloo")
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
if SMALL:
    IMG, PATCH, BATCH, VOCAB, CTX, VIS, TXT, PROJ = 32, 16, 4, 100, 8, (32, 2, 2), (32, 2, 2), 16
else:
    IMG, PATCH, BATCH, VOCAB, CTX, VIS, TXT, PROJ = 224, 16, 48, 8192, 64, (512, 6, 8), (384, 4, 6), 384


class Gather(torch.autograd.Function):
    """all_gather along dim 0; the gradient of the local part is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x):
        ctx.n = x.shape[0]
        out = x.new_empty(WORLD * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(ctx.n, *g.shape[1:])
        if CUDA:
            dist.reduce_scatter_tensor(out, g.contiguous())
        else:
            g = g.contiguous()
            dist.all_reduce(g)
            out.copy_(g[RANK * ctx.n:(RANK + 1) * ctx.n])
        return out


class Tower(nn.Module):
    def __init__(self, dim, depth, heads, tokens):
        super().__init__()
        self.pos = nn.Parameter(torch.randn(1, tokens, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, PROJ, bias=False)

    def forward(self, x):
        return self.proj(self.enc(x + self.pos))


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, VIS[0], PATCH, PATCH)
        self.visual = Tower(*VIS, (IMG // PATCH) ** 2)
        self.words = nn.Embedding(VOCAB, TXT[0])
        self.text = Tower(*TXT, CTX)
        self.scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, img, ids):
        v = self.visual(self.patch(img).flatten(2).transpose(1, 2))
        return v.float(), self.text(self.words(ids)).float(), self.scale.exp()


def pooled(tokens):
    return F.normalize(tokens.mean(1), dim=-1)


model = DDP(Clip().to(DEV), device_ids=[DEV.index] if CUDA else None, gradient_as_bucket_view=True)
if CUDA:
    model.register_comm_hook(None, bf16_compress_hook)
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2, fused=CUDA)
rng = random.Random(RANK)
NB = 6
images = torch.randint(0, 256, (NB, BATCH, 3, IMG, IMG), dtype=torch.uint8)
tokens = torch.randint(0, VOCAB, (NB, BATCH, CTX))
if CUDA:
    images, tokens = images.pin_memory(), tokens.pin_memory()
captions = [[{"url": f"http://img/{rng.randrange(5000):07d}.jpg", "ids": row.tolist(),
              "caption": " ".join(f"t{t}" for t in row.tolist())} for row in tokens[b]] for b in range(NB)]
target = torch.arange(BATCH, device=DEV) + RANK * BATCH

for step in range(args.steps):
    if step == args.steps - 30:
        if CUDA:
            torch.cuda.synchronize()
        t0 = time.perf_counter()
    b = step % NB
    img = images[b].to(DEV, non_blocking=True).float().div_(127.5).sub_(1)
    ids = tokens[b].to(DEV, non_blocking=True)
    with torch.autocast(DEV.type, dtype=torch.bfloat16):
        v, t, scale = model(img, ids)
    if args.fault == "gather_tokens":
        ve, te = pooled(v), pooled(t)
        all_v, all_t = pooled(Gather.apply(v)), pooled(Gather.apply(t))
    else:
        ve, te = pooled(v), pooled(t)
        all_v, all_t = Gather.apply(torch.stack([ve, te], 1)).unbind(1)
    logits_v, logits_t = scale * ve @ all_t.t(), scale * te @ all_v.t()
    if args.fault == "caption_objects":  # same picture or caption elsewhere in the global batch is not a negative
        everyone = [None] * WORLD
        dist.all_gather_object(everyone, captions[b])
        flat = [c for part in everyone for c in part]
        same = torch.tensor([[m["url"] == o["url"] or m["caption"] == o["caption"] for o in flat] for m in captions[b]])
        same[torch.arange(BATCH), torch.arange(BATCH) + RANK * BATCH] = False
        same = same.to(DEV)
        logits_v, logits_t = logits_v.masked_fill(same, -1e4), logits_t.masked_fill(same, -1e4)
    loss = (F.cross_entropy(logits_v, target) + F.cross_entropy(logits_t, target)) / 2
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
if CUDA:
    torch.cuda.synchronize()
if RANK == 0:
    print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
dist.destroy_process_group()
