"""Distil a decoder LM: frozen bf16 teacher, FSDP2 student, gradient accumulation over 3 micro-batches."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

SMALL = os.environ.get("SMALL") == "1"
VOCAB, SEQ, MICRO, ACCUM = (256, 32, 2, 3) if SMALL else (8192, 512, 5, 3)
TEACHER = dict(dim=64, depth=3, heads=4) if SMALL else dict(dim=1024, depth=12, heads=16)
STUDENT = dict(dim=32, depth=2, heads=4) if SMALL else dict(dim=1024, depth=6, heads=16)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, s, d))
        return x + self.fc2(F.gelu(self.fc1(self.n2(x))))


class Decoder(nn.Module):
    def __init__(self, dim, depth, heads):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, dim), nn.Embedding(SEQ, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, VOCAB, bias=False)
        nn.init.normal_(self.tok.weight, std=0.02)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


def kd_loss(student, teacher, targets, t=2.0, alpha=0.5):
    student = student.flatten(0, 1).float()
    soft = F.kl_div(F.log_softmax(student / t, -1), F.softmax(teacher.flatten(0, 1).float() / t, -1), reduction="batchmean")
    return alpha * t * t * soft + (1 - alpha) * F.cross_entropy(student, targets.flatten())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default=None, choices=["reduce_every_micro", "teacher_sharded"])
    ap.add_argument("--steps", type=int, default=60)
    args = ap.parse_args()
    cuda = torch.cuda.is_available()
    kind = "cuda" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh(kind, (world,))
    device = torch.device(kind, torch.cuda.current_device()) if cuda else torch.device("cpu")

    torch.manual_seed(0)
    with device:
        teacher = Decoder(**TEACHER).to(torch.bfloat16).eval().requires_grad_(False)
        student = Decoder(**STUDENT)
    if args.fault == "teacher_sharded":
        # same wrapping as the student, the teacher is the bigger one after all
        for b in teacher.blocks:
            fully_shard(b, mesh=mesh)
        fully_shard(teacher, mesh=mesh)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    accumulate_sharded = args.fault == "reduce_every_micro"
    for b in student.blocks:
        fully_shard(b, mesh=mesh, mp_policy=mp, reshard_after_forward=accumulate_sharded)
    fully_shard(student, mesh=mesh, mp_policy=mp, reshard_after_forward=accumulate_sharded)

    opt = torch.optim.AdamW(student.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-4, total_steps=args.steps + 1)
    gen = torch.Generator().manual_seed(rank)
    corpus = torch.randint(VOCAB, (64, SEQ + 1), generator=gen)
    if cuda:
        corpus = corpus.pin_memory()

    started, cursor = 0.0, 0
    for step in range(args.steps):
        if step == args.steps - 30:
            if cuda:
                torch.cuda.synchronize()
            started = time.perf_counter()
        total = torch.zeros((), device=device)
        for micro in range(ACCUM):
            last = micro == ACCUM - 1
            if not accumulate_sharded:
                student.set_requires_gradient_sync(last)
                student.set_reshard_after_backward(last)
            ids = corpus[cursor:cursor + MICRO].to(device, non_blocking=True)
            cursor = (cursor + MICRO) % (64 - MICRO)
            with torch.no_grad():
                soft = teacher(ids[:, :-1])
            loss = kd_loss(student(ids[:, :-1]), soft, ids[:, 1:]) / ACCUM
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        sched.step()
        if step % 20 == 0:
            norm = norm.full_tensor()
            if rank == 0:
                print(f"step {step:3d} kd {total.item():.4f} |g| {norm.item():.3f}", flush=True)
    if cuda:
        torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"step_ms": (time.perf_counter() - started) / 30 * 1000}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
