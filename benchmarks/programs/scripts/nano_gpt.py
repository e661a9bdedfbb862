"""
Trains a small GPT with DDP, in the manner of nanoGPT.
"""

import argparse
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["none", "slow-memmap", "eval-on-master"], default="none")
block_size, batch_size, n_embd, n_head, n_layer = 32, 8, 96, 4, 2
gradient_accumulation_steps, max_iters, warmup_iters = 4, 14, 3
learning_rate, min_lr, eval_interval = 3e-3, 3e-4, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(128, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.lm_head = nn.Linear(n_embd, 128)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, 128), targets.reshape(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


def get_batch(path, wait):
    time.sleep(wait)
    data = np.memmap(path, dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    rows = torch.stack(
        [torch.from_numpy(data[i : i + block_size + 1].astype(np.int64)) for i in ix]
    )
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def estimate_loss(model, path):
    model.eval()
    losses = [model(*get_batch(path, 0.0))[1].item() for _ in range(30)]
    model.train()
    return sum(losses) / len(losses)


if __name__ == "__main__":
    fault = ap.parse_args().fault
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    master_process = ddp_rank == 0
    torch.manual_seed(1337)
    model = DDP(GPT())
    raw_model = model.module
    torch.manual_seed(1337 + ddp_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    wait = 0.006 if fault == "slow-memmap" and ddp_rank == 1 else 0.0
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        ((np.arange(20000) // 3) % 128).astype(np.uint16).tofile(file.name)
        first = None
        for iter_num in range(max_iters):
            for group in optimizer.param_groups:
                group["lr"] = get_lr(iter_num)
            if fault == "eval-on-master" and iter_num % eval_interval == 0 and master_process:
                print(f"step {iter_num}: val loss {estimate_loss(raw_model, file.name):.4f}")
            for micro_step in range(gradient_accumulation_steps):
                model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
                _, loss = model(*get_batch(file.name, wait))
                (loss / gradient_accumulation_steps).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            first = first or loss.item()
    assert loss.item() < first
    destroy_process_group()
