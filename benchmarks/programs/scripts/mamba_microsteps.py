"""A language model of gated recurrences, whose step takes six micro-batches of each rank.

Gradients are kept in one buffer, which is summed over the ranks once they are complete; or after
each micro-batch, when the call has slipped into the inner loop.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

DIM, WORDS, LENGTH, MICRO = 224, 1024, 32, 6


class Recurrence(nn.Module):
    """h[t] = a h[t-1] + x[t], for all t at once by a matrix of powers of a."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.into, self.out = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.decay = nn.Parameter(torch.linspace(-2, 3, 16))
        steps = torch.arange(LENGTH)
        self.register_buffer("lag", (steps[:, None] - steps).clamp(min=0).float())
        self.register_buffer("causal", (steps[:, None] >= steps).float())

    def forward(self, x):
        value, gate = self.into(self.norm(x)).chunk(2, -1)
        powers = torch.sigmoid(self.decay)[:, None, None] ** self.lag * self.causal
        value = value.unflatten(-1, (16, -1)).transpose(1, 2)
        mixed = (powers @ value).transpose(1, 2).flatten(2)
        return x + self.out(mixed * F.silu(gate))


def flatten(parameters):
    """A buffer that holds the gradients of these."""
    flat = torch.zeros(sum(p.numel() for p in parameters))
    start = 0
    for p in parameters:
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return flat


def make(gen, batch):
    """The next word is twice this one and a bit."""
    words = [torch.randint(WORDS, (batch,), generator=gen)]
    for _ in range(LENGTH):
        words.append((2 * words[-1] + torch.randint(3, (batch,), generator=gen)) % WORDS)
    words = torch.stack(words, 1)
    return words[:, :-1], words[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--fault", choices=["none", "reduce-each"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(WORDS, DIM), *(Recurrence() for _ in range(3)), nn.Linear(DIM, WORDS)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    flat = flatten(list(model.parameters()))
    total = torch.zeros_like(flat)
    gen = torch.Generator().manual_seed(1 + rank)
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        flat.zero_()
        total.zero_()
        seen = 0.0
        for _ in range(MICRO):
            words, following = make(gen, args.batch)
            loss = F.cross_entropy(model(words).flatten(0, 1), following.flatten())
            (loss / (MICRO * world)).backward()
            seen += loss.item() / MICRO
            if args.fault == "reduce-each":
                dist.all_reduce(flat)
                total += flat
                flat.zero_()
        if args.fault == "reduce-each":
            flat.copy_(total)
        else:
            dist.all_reduce(flat)
        optimizer.step()
        losses.append(seen)
        times.append(time.perf_counter() - before)
    assert losses[-1] < 0.9 * losses[0], losses
    sums = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(sums, model[-1].weight.detach().sum().view(1))
    assert torch.cat(sums).unique().numel() == 1, sums
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
