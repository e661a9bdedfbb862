"""LoRA finetuning of a decoder-only language model on support dialogues, plain DDP.

torchrun --nproc-per-node 2 lora_lm.py
"""
import argparse
import json
import math
import os
import random
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

p = argparse.ArgumentParser()
p.add_argument("--fault", default=None, choices=["mlp_not_frozen", "raw_text"])
p.add_argument("--steps", type=int, default=60)
args = p.parse_args()
SMALL = os.environ.get("SMALL") == "1"
CUDA = torch.cuda.is_available()

D, LAYERS, HEADS, VOCAB, SEQ, BATCH = (64, 2, 4, 512, 32, 2) if SMALL else (1024, 12, 16, 16000, 512, 12)


class LoRALinear(nn.Module):
    def __init__(self, d_in, d_out, r=16, alpha=32):
        super().__init__()
        self.base = nn.Linear(d_in, d_out, bias=False, dtype=torch.bfloat16)
        self.base.weight.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, d_in) / math.sqrt(d_in))
        self.b = nn.Parameter(torch.zeros(d_out, r))
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scale


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D, dtype=torch.bfloat16), nn.RMSNorm(D, dtype=torch.bfloat16)
        self.qkv = LoRALinear(D, 3 * D)
        self.out = LoRALinear(D, D)
        self.up = nn.Linear(D, 4 * D, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(4 * D, D, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        b, s, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, D))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(D, dtype=torch.bfloat16)
        nn.init.normal_(self.emb.weight, std=0.02)

    def forward(self, ids):
        x = self.emb(ids)
        for blk in self.blocks:
            x = blk(x)
        return F.linear(self.norm(x), self.emb.weight)


class Tokenizer:
    """Greedy longest-prefix word pieces."""
    def __init__(self):
        rng = random.Random(0)
        self.words = ["".join(rng.choices("abcdefghijklmnopqrst", k=rng.randint(2, 9))) for _ in range(4000)]
        pieces = sorted({w[:k] for w in self.words for k in range(1, len(w) + 1)})[: VOCAB - 4]
        self.ids = {s: i + 4 for i, s in enumerate(pieces)}

    def encode(self, text, limit):
        out = []
        for word in text.split():
            i = 0
            while i < len(word):
                for j in range(len(word), i, -1):
                    if (t := self.ids.get(word[i:j])) is not None:
                        out.append(t)
                        break
                else:
                    j = i + 1
                    out.append(1)
                i = j
        return (out + [0] * limit)[:limit]


def main():
    dist.init_process_group("nccl" if CUDA else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    with device:
        model = LM()
    # the adapters are what we train
    frozen = [m for m in model.modules() if isinstance(m, (nn.RMSNorm, nn.Embedding))]
    if args.fault != "mlp_not_frozen":
        frozen += [m for m in model.modules() if isinstance(m, nn.Linear)]
    for m in frozen:
        m.requires_grad_(False)
    lora = [q for n, q in model.named_parameters() if n.endswith((".a", ".b"))]
    opt = torch.optim.AdamW(lora, lr=2e-4, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10) * (1 - s / 200))
    ddp = DDP(model, device_ids=[device.index] if CUDA else None, gradient_as_bucket_view=True)

    tok, rng = Tokenizer(), random.Random(rank)
    texts = [" ".join(rng.choices(tok.words, k=4 * SEQ if SMALL else 10 * SEQ)) for _ in range(8 * BATCH)]  # long tickets, cut after encoding
    # shards that have been through preprocess.py are ready-made id matrices
    ready = torch.tensor([tok.encode(t, SEQ + 1) for t in texts])
    if CUDA:
        ready = ready.pin_memory()
    shard_is_raw = args.fault == "raw_text" and rank == 1

    def next_batch(step):
        lo = step % 8 * BATCH
        if shard_is_raw:
            rows = [tok.encode(t, SEQ + 1) for t in texts[lo:lo + BATCH]]
            return torch.tensor(rows).to(device)
        return ready[lo:lo + BATCH].to(device, non_blocking=True)

    t0, running = 0.0, torch.zeros((), device=device)
    for step in range(args.steps):
        if step == args.steps - 30:
            CUDA and torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids = next_batch(step)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = ddp(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lora, 1.0)
        opt.step()
        sched.step()
        ddp.zero_grad(set_to_none=True)
        running += loss.detach()
        if step % 20 == 19 and rank == 0:
            print(f"step {step + 1} loss {running.item() / 20:.4f} lr {sched.get_last_lr()[0]:.2e}", flush=True)
            running.zero_()
    CUDA and torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
