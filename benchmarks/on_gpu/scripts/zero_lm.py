"""Language model, DDP gradients + ZeroRedundancyOptimizer(AdamW); each rank owns the optimizer state of half the parameters."""
import argparse
import json
import math
import os
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = os.environ.get("SMALL") == "1"
VOCAB, DIM, LAYERS, HEADS, SEQ, BATCH = (512, 32, 2, 2, 32, 2) if SMALL else (8192, 512, 8, 8, 512, 16)
HOST_NUMEL = 8000 if SMALL else 4_000_000


class HostAdamW(torch.optim.Optimizer):
    """AdamW that keeps the moments and fp32 master of large tensors (the embedding) in host memory."""

    def __init__(self, params, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                home = "cpu" if p.numel() >= HOST_NUMEL else p.device
                if not st:
                    st["t"] = 0
                    st["m"], st["v"] = torch.zeros(p.shape, device=home), torch.zeros(p.shape, device=home)
                    st["master"] = p.detach().to(home) if home == "cpu" else p
                st["t"] += 1
                g, w = p.grad.to(home), st["master"]
                w.mul_(1 - group["lr"] * group["weight_decay"])
                st["m"].lerp_(g, 1 - b1)
                st["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
                denom = (st["v"].sqrt() / math.sqrt(1 - b2 ** st["t"])).add_(group["eps"])
                w.addcdiv_(st["m"], denom, value=-group["lr"] / (1 - b1 ** st["t"]))
                if w is not p:
                    p.copy_(w)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM, bias=False), nn.GELU(), nn.Linear(4 * DIM, DIM, bias=False))

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (z.view(n, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.a(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, DIM))
        return x + self.mlp(self.b(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.emb.weight)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["host_state", "frequent_consolidate"])
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--save-every", type=int, default=1000)
    args = ap.parse_args()
    if args.fault == "frequent_consolidate":
        args.save_every = 20
    rank, cuda = int(os.environ["RANK"]), torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dev = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    torch.set_float32_matmul_precision("high")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)
    model = DDP(LM().to(dev), device_ids=[dev.index] if cuda else None, gradient_as_bucket_view=True)
    if args.fault == "host_state":
        opt = ZeroRedundancyOptimizer(model.parameters(), HostAdamW, parameters_as_bucket_view=True, lr=3e-4)
    else:
        opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=3e-4,
                                      betas=(0.9, 0.95), weight_decay=0.1, fused=cuda)
    data = torch.randint(0, VOCAB, (8, BATCH, SEQ + 1), generator=torch.Generator().manual_seed(rank))
    data = data.pin_memory() if cuda else data
    path = os.path.join(tempfile.gettempdir(), f"zero_lm_{os.environ['MASTER_PORT']}.pt")
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            t0 = time.perf_counter()
        ids = data[step % 8].to(dev, non_blocking=True)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        if (step + 1) % args.save_every == 0:
            opt.consolidate_state_dict(to=0)
            if rank == 0:
                torch.save({"step": step, "model": model.module.state_dict(), "opt": opt.state_dict()}, path)
            dist.barrier()
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - t0) / 30 * 1e3}), flush=True)
        if os.path.exists(path):
            os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
