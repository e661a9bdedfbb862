"""Tagger of place names with a gazetteer feature, DDP.

Rank 0 owns the gazetteer; the others get it from there.

    torchrun --nproc-per-node 2 lexicon_ner.py [--fault resync]
"""

import argparse
import random
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "resync"])
FAULT = parser.parse_args().fault
ENTRIES = 30_000
VOCAB, DIM, HIDDEN, TAGS = 4000, 48, 64, 5
BATCH, LENGTH, STEPS = 16, 24, 80


def build_gazetteer():
    rng = random.Random(3)
    parts = ["al", "ber", "ka", "lon", "mi", "ro", "sto", "tal", "ver", "wu", "ny", "da"]
    entries = {}
    while len(entries) < ENTRIES:
        name = "".join(rng.choice(parts) for _ in range(rng.randint(2, 6)))
        entries[name] = (rng.randrange(TAGS), round(rng.random(), 3))
    return entries


class Gazetteer:
    def __init__(self, rank):
        self.rank = rank
        self.entries = build_gazetteer() if rank == 0 else None
        self.synced = False

    def sync(self):
        if self.synced and FAULT != "resync":
            return
        box = [self.entries]
        dist.broadcast_object_list(box, src=0)
        self.entries = box[0]
        self.synced = True

    def features(self, words):
        return torch.tensor([[self.entries.get(w, (0, 0.0))[1] for w in sent] for sent in words])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.LSTM(DIM + 1, HIDDEN, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * HIDDEN, TAGS)

    def forward(self, ids, known):
        h, _ = self.rnn(torch.cat([self.emb(ids), known.unsqueeze(-1)], dim=-1))
        return self.out(h)


def sentences(rng, names, table):
    words = [
        [
            rng.choice(names) if rng.random() < 0.2 else "w%d" % rng.randrange(2000)
            for _ in range(LENGTH)
        ]
        for _ in range(BATCH)
    ]
    ids = torch.tensor([[table.setdefault(w, len(table) % VOCAB) for w in s] for s in words])
    return words, ids


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gazetteer = Gazetteer(rank)
    gazetteer.sync()
    names = sorted(gazetteer.entries)
    rng, table, took = random.Random(rank), {}, []
    for step in range(STEPS):
        start = time.perf_counter()
        gazetteer.sync()
        words, ids = sentences(rng, names, table)
        known = gazetteer.features(words)
        tags = torch.tensor([[gazetteer.entries.get(w, (0, 0.0))[0] for w in s] for s in words])
        loss = nn.functional.cross_entropy(model(ids, known).flatten(0, 1), tags.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
