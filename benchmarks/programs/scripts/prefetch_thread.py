"""A thread prepares the next batch; its preparation may be pure Python, and hold the interpreter."""

import argparse
import random
import threading

import torch
import torch.distributed as dist
from torch import nn

WORDS, DIM, LENGTH, ROWS = 400, 96, 24, 48


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


class Sentences:
    """The next batch; near-duplicates of what was seen lately are drawn again."""

    def __init__(self, seed, deduplicate):
        self.rng, self.deduplicate = random.Random(seed), deduplicate
        self.recent = [self.draw() for _ in range(6)]

    def draw(self):
        start, stride = self.rng.randrange(WORDS), self.rng.randrange(1, 4)
        return [(start + stride * k) % WORDS for k in range(LENGTH + 1)]

    def batch(self):
        lines = []
        while len(lines) < ROWS:
            line = self.draw()
            if self.deduplicate and min(edit_distance(line, r) for r in self.recent) < 3:
                continue
            lines.append(line)
        self.recent = lines[:6]
        return torch.tensor(lines)


class Prefetcher:
    def __init__(self, source):
        self.source = source
        self.start()

    def start(self):
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self):
        self.ready = self.source.batch()

    def next(self):
        self.thread.join()
        ready = self.ready
        self.start()
        return ready


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "deduplicate"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = Prefetcher(Sentences(rank, args.fault == "deduplicate" and rank == 1))
    torch.manual_seed(0)
    rnn = nn.GRU(DIM, 160, num_layers=2, batch_first=True)
    model = nn.ModuleDict(
        {"embed": nn.Embedding(WORDS, DIM), "rnn": rnn, "out": nn.Linear(160, WORDS)}
    )
    params = list(model.parameters())
    optimizer = torch.optim.RMSprop(params, lr=1e-3)
    losses = []
    for _ in range(22):
        tokens = data.next()
        hidden, _ = model["rnn"](model["embed"](tokens[:, :-1]))
        logits = model["out"](hidden)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in params]
        for work, p in zip(works, params):
            work.wait()
            p.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(loss.item())
    data.thread.join()
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
