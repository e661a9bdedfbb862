"""LM fine-tuning with a small Trainer class: periodic validation, checkpoints, gradient statistics."""
import argparse
import collections
import json
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
VOCAB, DIM, LAYERS, HEADS, SEQ, BATCH, VAL = (256, 32, 2, 2, 32, 2, 4) if SMALL else (8192, 512, 6, 8, 512, 20, 24)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.wqkv, self.wo = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.wqkv(self.ln1(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(b, t, DIM))
        return x + self.ff(self.ln2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, DIM), nn.Embedding(SEQ, DIM)
        self.h = nn.Sequential(*[Block() for _ in range(LAYERS)], nn.LayerNorm(DIM))
        self.wte.weight.data.mul_(0.02)

    def forward(self, ids):
        x = self.h(self.wte(ids[:, :-1]) + self.wpe.weight[: ids.shape[1] - 1])
        logits = F.linear(x, self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


class Trainer:
    def __init__(self, args):
        self.args, self.cuda = args, torch.cuda.is_available()
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.cuda:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        self.dev = torch.device("cuda", torch.cuda.current_device()) if self.cuda else torch.device("cpu")
        dist.init_process_group("nccl" if self.cuda else "gloo")
        torch.manual_seed(0)
        self.model = DDP(LanguageModel().to(self.dev), device_ids=[self.dev.index] if self.cuda else None,
                         gradient_as_bucket_view=True)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=self.cuda)
        self.train_set = self.tokens(8, seed=self.rank + 1)
        self.val_set = self.tokens(VAL, seed=99)
        self.history = collections.defaultdict(list)
        self.ckpt = os.path.join(tempfile.gettempdir(), f"lm_trainer_{os.environ['MASTER_PORT']}.pt")

    def tokens(self, n, seed):
        t = torch.randint(0, VOCAB, (n, BATCH, SEQ + 1), generator=torch.Generator().manual_seed(seed))
        return t.pin_memory() if self.cuda else t

    def loss(self, model, batch):
        ids = batch.to(self.dev, non_blocking=True)
        with torch.autocast(self.dev.type, dtype=torch.bfloat16):
            return model(ids)

    @torch.no_grad()
    def validate(self, step):
        sharded = self.args.fault != "validate_on_rank0"
        if sharded or self.rank == 0:
            self.model.eval()
            part = self.val_set[self.rank::self.world] if sharded else self.val_set
            total = torch.zeros((), device=self.dev)
            for batch in part:
                total += self.loss(self.model.module, batch)
            if sharded:
                dist.all_reduce(total)
            if self.rank == 0:
                self.history["val_loss"].append((step, total.item() / len(self.val_set)))
            self.model.train()
        if not sharded:
            dist.barrier()

    def save(self, step):
        if self.rank == 0:
            with open(self.ckpt + ".tmp", "wb") as f:
                torch.save({"step": step, "model": self.model.module.state_dict()}, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(self.ckpt + ".tmp", self.ckpt)
        dist.barrier()

    def grad_stats(self):
        for name, p in self.model.module.named_parameters():
            norm = p.grad.norm()
            dist.all_reduce(norm)
            self.history[f"grad/{name}"].append(norm.item() / self.world)

    def fit(self):
        a = self.args
        for step in range(a.steps):
            if step == a.steps - 30:
                if self.cuda:
                    torch.cuda.synchronize()
                t0 = time.perf_counter()
            loss = self.loss(self.model, self.train_set[step % len(self.train_set)])
            loss.backward()
            if a.fault == "grad_norm_per_tensor":
                self.grad_stats()
            self.opt.step()
            self.opt.zero_grad(set_to_none=True)
            if (step + 1) % 10 == 0:
                self.validate(step)
            if (step + 1) % a.save_every == 0:
                self.save(step)
        if self.cuda:
            torch.cuda.synchronize()
        ms = (time.perf_counter() - t0) / 30 * 1e3
        self.save(a.steps)
        if self.rank == 0:
            os.remove(self.ckpt)
            print(json.dumps({"step_ms": ms}), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["validate_on_rank0", "save_often", "grad_norm_per_tensor"])
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--save-every", type=int, default=500)
    ns = ap.parse_args()
    if ns.fault == "save_often":
        ns.save_every = 10
    Trainer(ns).fit()
