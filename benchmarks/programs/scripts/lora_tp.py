"""LoRA fine-tuning of a frozen decoder with hand-written tensor parallelism.

Attention heads and MLP columns are split over the ranks (Megatron style: one
all-reduce after attention, one after the MLP, and their mirror images in the
backward pass).  Only low-rank adapters on the column-parallel projections are
trained.  2 ranks.

    torchrun --nproc-per-node 2 lora_tp.py [--fault anomaly_left_on]

--fault anomaly_left_on: somebody chased a NaN on rank 1 and left
torch.autograd.set_detect_anomaly(True) behind for that rank.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

D, HEADS, LAYERS, VOCAB, SEQ, BATCH, R = 128, 8, 4, 256, 48, 4, 4


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ColumnLora(nn.Module):
    """Frozen column-parallel weight plus adapter (A replicated, B sharded)."""

    def __init__(self, d_in, d_out_local, gen_shared, gen_rank):
        super().__init__()
        w = torch.randn(d_out_local, d_in, generator=gen_rank) / math.sqrt(d_in)
        self.w = nn.Parameter(w, requires_grad=False)
        self.a = nn.Parameter(torch.randn(R, d_in, generator=gen_shared) / math.sqrt(d_in))
        self.b = nn.Parameter(torch.zeros(d_out_local, R))

    def forward(self, x, x_par):
        low = CopyToRanks.apply(x @ self.a.t())
        return x_par @ self.w.t() + (low @ self.b.t()) * 4.0


class Block(nn.Module):
    def __init__(self, world, shared, own):
        super().__init__()
        self.heads = HEADS // world
        self.hd = D // HEADS
        loc = D // world
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.n1.requires_grad_(False)
        self.n2.requires_grad_(False)
        self.q = ColumnLora(D, loc, shared, own)
        self.k = ColumnLora(D, loc, shared, own)
        self.v = ColumnLora(D, loc, shared, own)
        self.up = ColumnLora(D, 4 * loc, shared, own)
        self.o = nn.Parameter(
            torch.randn(D, loc, generator=own) / math.sqrt(D), requires_grad=False
        )
        self.down = nn.Parameter(
            torch.randn(D, 4 * loc, generator=own) / math.sqrt(4 * D), requires_grad=False
        )

    def forward(self, x):
        b, t, _ = x.shape
        h = self.n1(x)
        hp = CopyToRanks.apply(h)
        q, k, v = (
            m(h, hp).view(b, t, self.heads, self.hd).transpose(1, 2)
            for m in (self.q, self.k, self.v)
        )
        att = (q @ k.transpose(-1, -2)) / math.sqrt(self.hd)
        att = att + torch.full((t, t), float("-inf")).triu(1)
        y = (att.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1)
        x = x + SumOverRanks.apply(y @ self.o.t())
        h = self.n2(x)
        return x + SumOverRanks.apply(F.gelu(self.up(h, CopyToRanks.apply(h))) @ self.down.t())


class Decoder(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        shared, own = torch.Generator().manual_seed(5), torch.Generator().manual_seed(50 + rank)
        self.emb = nn.Parameter(torch.randn(VOCAB, D, generator=shared) * 0.5, requires_grad=False)
        self.blocks = nn.ModuleList(Block(world, shared, own) for _ in range(LAYERS))

    def forward(self, ids):
        x = self.emb[ids]
        for blk in self.blocks:
            x = blk(x)
        return F.layer_norm(x, (D,)) @ self.emb.t() * 0.2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "anomaly_left_on"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.fault == "anomaly_left_on" and rank == 1:
        torch.autograd.set_detect_anomaly(True)
    model = Decoder(rank, world)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    g = torch.Generator().manual_seed(9)  # same batch on all ranks
    history, clock = [], []
    for step in range(28):
        start = torch.randint(0, VOCAB, (BATCH, 1), generator=g)
        ids = (start + 3 * torch.arange(SEQ + 1)) % VOCAB
        t0 = time.perf_counter()
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        clock.append(time.perf_counter() - t0)
    drift = model.blocks[0].q.a.detach().clone()
    dist.broadcast(drift, 0)
    assert torch.allclose(drift, model.blocks[0].q.a, atol=1e-4), "replicated adapters diverged"
    if rank == 0:
        assert history[-1] < history[0]
        print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")
        print(f"mean step {sum(clock[3:]) / len(clock[3:]) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
