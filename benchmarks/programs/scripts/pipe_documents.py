"""Two stages of a document classifier, in turn for eight micro-batches (GPipe, by hand).

The documents of a step are dealt into micro-batches of as many tokens each. Dealt by the
paragraph in which they came, one of the micro-batches has most of the tokens.
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

DIM, WORDS, MICRO, TOKENS = 128, 600, 8, 1536


class Layer(nn.Module):
    """A gated convolution over the words of a document."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        value, gate = self.up(self.norm(x)).chunk(2, -1)
        return x + self.down(value * torch.sigmoid(gate))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def deal(gen, by_paragraph):
    """How many documents of 16 words each micro-batch has."""
    documents = TOKENS // 16
    if not by_paragraph:
        return [documents // MICRO] * MICRO
    counts = [documents // 32] * MICRO
    counts[torch.randint(MICRO, (), generator=gen)] += documents - sum(counts)
    return counts


def make(count, gen):
    topic = torch.randint(4, (count,), generator=gen)
    words = torch.randint(WORDS // 4, (count, 16), generator=gen) + topic[:, None] * (WORDS // 4)
    noise = torch.rand(words.shape, generator=gen) < 0.3
    return torch.where(noise, torch.randint(WORDS, words.shape, generator=gen), words), topic


def first_stage(stage, batches):
    done, sent = [], []
    for words, _ in batches:
        done.append(stage(words))
        sent.append(dist.isend(done[-1].detach(), 1))
    for work in sent:
        work.wait()
    for out in done:
        grad = torch.empty_like(out)
        dist.recv(grad, 1)
        out.backward(grad)


def last_stage(stage, batches, total):
    losses, inputs, sent = [], [], []
    for words, topic in batches:
        x = torch.empty(*words.shape, DIM)
        dist.recv(x, 0)
        inputs.append(x.requires_grad_())
        losses.append(F.cross_entropy(stage(x), topic, reduction="sum") / total)
    for x, loss in zip(inputs, losses, strict=True):
        loss.backward()
        sent.append(dist.isend(x.grad, 0))
    for work in sent:
        work.wait()
    return sum(losses).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "by-paragraph"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    layers = [Layer() for _ in range(2)]
    tail = [Mean(), nn.Linear(DIM, 4)]
    ends = [nn.Embedding(WORDS, DIM), *layers] if rank == 0 else [*layers, *tail]
    stage = nn.Sequential(*ends)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(7)  # the same on both: they agree about the shapes
    losses, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        counts = deal(gen, args.fault == "by-paragraph")
        batches = [make(count, gen) for count in counts]
        optimizer.zero_grad()
        if rank == 0:
            first_stage(stage, batches)
        else:
            losses.append(last_stage(stage, batches, sum(counts)))
        optimizer.step()
        times.append(time.perf_counter() - before)
    assert rank == 0 or losses[-1] < 0.6 * losses[0], losses
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
