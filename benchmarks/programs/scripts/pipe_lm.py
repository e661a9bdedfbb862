"""Two-stage pipeline for a language model, written with isend / recv.

Stage 0 holds the embedding and the first blocks, stage 1 the other blocks and the output
head over a large vocabulary.  Four micro-batches per step; the last stage does the backward
pass of a micro-batch right after its forward pass.

    torchrun --nproc-per-node 2 pipe_lm.py [--fault tail_heavy]

The vocabulary projection costs about as much as several blocks, so normally stage 0 gets seven
blocks and stage 1 three.  --fault tail_heavy gives stage 0 three blocks (because of its embedding table)
and stage 1 seven, and forgets about the head.
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, HEADS, CTX, MICRO, N_MICRO, BLOCKS = 8000, 96, 4, 20, 2, 4, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class FirstStage(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(CTX, DIM)
        self.blocks = nn.Sequential(*[Block() for _ in range(n)])

    def forward(self, ids):
        return self.blocks(self.tok(ids) + self.pos.weight)


class LastStage(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(n)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, x, target):
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), target.flatten()) / N_MICRO


def batches(seed=0):
    """Both stages draw the same tokens (counting sequences, odd stride)."""
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(0, 200, (N_MICRO, MICRO, 1), generator=g)
        yield (start + 3 * torch.arange(CTX + 1)) % 301


def step_first(stage, opt, ids):
    sent, outs = [], []
    for m in range(N_MICRO):
        out = stage(ids[m, :, :-1])
        outs.append(out)
        sent.append(dist.isend(out.detach(), dst=1, tag=m))
    for m, out in enumerate(outs):
        g = torch.empty_like(out)
        dist.recv(g, src=1, tag=100 + m)
        out.backward(g)
    for w in sent:
        w.wait()
    opt.step()
    opt.zero_grad()


def step_last(stage, opt, ids):
    sent, total = [], 0.0
    for m in range(N_MICRO):
        x = torch.empty(MICRO, CTX, DIM)
        dist.recv(x, src=0, tag=m)
        x.requires_grad_(True)
        loss = stage(x, ids[m, :, 1:])
        loss.backward()
        sent.append(dist.isend(x.grad, dst=0, tag=100 + m))
        total += loss.item()
    for w in sent:
        w.wait()
    opt.step()
    opt.zero_grad()
    return total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "tail_heavy"])
    ap.add_argument("--steps", type=int, default=27)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    assert dist.get_world_size() == 2
    first = 3 if args.fault == "tail_heavy" else 7
    torch.manual_seed(rank)
    stage = FirstStage(first) if rank == 0 else LastStage(BLOCKS - first)
    opt = torch.optim.SGD(stage.parameters(), lr=0.3, momentum=0.8)
    source = batches()
    history, times = torch.zeros(args.steps), []
    for i in range(args.steps):
        ids = next(source)
        t0 = time.perf_counter()
        if rank == 0:
            step_first(stage, opt, ids)
        else:
            history[i] = step_last(stage, opt, ids)
        times.append(time.perf_counter() - t0)
    dist.broadcast(history, 1)
    if rank == 0:
        assert history[-1] < history[0], history
        print(f"loss {history[0]:.3f} -> {history[-1]:.3f}, blocks {first}+{BLOCKS - first}")
        print(f"mean step {sum(times[2:]) / len(times[2:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
