"""Decodes with two pipeline stages: while one has a group of sequences, the other has the other."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

DIM, HEADS, VOCAB = 256, 4, 500


class Attention(nn.Module):
    def __init__(self, use_cache):
        super().__init__()
        self.q, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.kv = nn.Linear(DIM, 2 * DIM)
        self.use_cache = use_cache

    def forward(self, x, past):
        """The newest token's x (batch, DIM); ``past`` is the list this layer keeps for a group."""
        past.append(x if not self.use_cache else self.kv(x))
        kept = torch.stack(past, dim=1)
        k, v = (kept if self.use_cache else self.kv(kept)).chunk(2, dim=2)
        split = [t.unflatten(2, (HEADS, -1)).transpose(1, 2) for t in (self.q(x)[:, None], k, v)]
        return self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(1))


class Stage(nn.Module):
    def __init__(self, layers, use_cache):
        super().__init__()
        self.attention = nn.ModuleList(Attention(use_cache) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))
            for _ in range(layers)
        )
        self.past = [[[] for _ in range(layers)] for _ in range(2)]

    def forward(self, x, group):
        for attention, mlp, past in zip(self.attention, self.mlp, self.past[group], strict=True):
            x = x + attention(x, past)
            x = x + mlp(x)
        return x


def first_stage(stage, embed, batch, tokens, step):
    chosen = [torch.full((batch,), 7 * g) for g in range(2)]
    text = []
    for t in range(tokens):
        sends = []
        for g in range(2):
            if t:
                dist.recv(chosen[g], src=1)
                text.append(chosen[g].clone())
            sends.append((hidden := stage(embed(chosen[g]), g), dist.isend(hidden, dst=1)))
        for _, work in sends:
            work.wait()
        step()
    return torch.stack(text)


def last_stage(stage, head, batch, tokens, step):
    text, hidden = [], torch.empty(batch, DIM)
    for t in range(tokens):
        sends = []
        for g in range(2):
            dist.recv(hidden, src=0)
            text.append(head(stage(hidden.clone(), g)).argmax(dim=1))
            if t < tokens - 1:
                sends.append(dist.isend(text[-1], dst=0))
        for work in sends:
            work.wait()
        step()
    return torch.stack(text[:-2])


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=22)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "pipe_decode"))
    parser.add_argument("--fault", choices=["none", "no-cache"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage(4, use_cache=args.fault == "none" or rank == 0)
    ends = nn.Embedding(VOCAB, DIM) if rank == 0 else nn.Linear(DIM, VOCAB)
    run = first_stage if rank == 0 else last_stage
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        text = run(stage, ends, args.batch, args.tokens, profiler.step)
    totals = torch.stack([text.sum(), text.sum()])
    dist.all_reduce(totals[0])
    assert totals[0] == 2 * totals[1], "both stages have the same text"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
