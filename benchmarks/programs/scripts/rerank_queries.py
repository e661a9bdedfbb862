"""A search engine reranks: queries come in at rank 2, candidates are split over all ranks.

Rank 2 turns the queries into ids and broadcasts them; each rank scores its
third of the candidates with a cross-encoder; rank 2 gathers the scores.

    torchrun --nproc-per-node 3 rerank_queries.py [--fault spelling]

--fault spelling: rank 2 corrects the spelling of every word first, by trying
all its edits against the dictionary.
"""

import argparse
import random
import statistics
import string
import time

import torch
import torch.distributed as dist
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "spelling"])
FAULT = parser.parse_args().fault
QUERIES, WORDS, PASSAGE, CANDIDATES = 8, 10, 24, 8  # candidates of each query on each rank
DIM, STEPS, FRONT = 96, 60, 2


class CrossEncoder(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.words = nn.Embedding(vocab, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(DIM, 1)

    def forward(self, query, passage):
        ids = torch.cat([query.repeat_interleave(CANDIDATES, 0), passage.flatten(0, 1)], dim=1)
        return self.head(self.layers(self.words(ids))[:, 0]).view(QUERIES, CANDIDATES)


def dictionary():
    draw = random.Random(0)
    words = {
        "".join(draw.choice(string.ascii_lowercase) for _ in range(draw.randint(4, 9)))
        for _ in range(5000)
    }
    return {word: i + 1 for i, word in enumerate(sorted(words))}


def mistype(word, draw):
    if draw.random() < 0.7:
        return word
    at = draw.randrange(len(word))
    return word[:at] + draw.choice(string.ascii_lowercase) + word[at + 1 :]


def edits(word):
    halves = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    letters = string.ascii_lowercase
    return {
        *(a + b[1:] for a, b in halves if b),
        *(a + c + b[1:] for a, b in halves if b for c in letters),
        *(a + c + b for a, b in halves for c in letters),
    }


def correct(word, known):
    near = {w for w in edits(word) if w in known}
    if word in known or not near:
        return word
    return min(near)


def tokenise(text, known):
    words = text.lower().split()
    if FAULT == "spelling":
        words = [correct(word, known) for word in words]
    ids = [known.get(word, 0) for word in words]
    return ids[:WORDS] + [0] * (WORDS - len(ids))


@torch.inference_mode()
def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    known = dictionary()
    words = list(known)
    torch.manual_seed(0)
    model = CrossEncoder(len(known) + 1).eval()
    gen = torch.Generator().manual_seed(rank)
    shelf = torch.randint(1, len(known) + 1, (400, CANDIDATES, PASSAGE), generator=gen)
    draw = random.Random(4)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        query = torch.zeros(QUERIES, WORDS, dtype=torch.long)
        if rank == FRONT:
            texts = [
                " ".join(mistype(draw.choice(words), draw) for _ in range(WORDS))
                for _ in range(QUERIES)
            ]
            query = torch.tensor([tokenise(text, known) for text in texts])
        dist.broadcast(query, FRONT)
        scores = model(query, shelf[query.sum(1) % len(shelf)])
        parts = [torch.empty_like(scores) for _ in range(world)] if rank == FRONT else None
        dist.gather(scores, parts, dst=FRONT)
        if rank == FRONT:
            best = torch.cat(parts, dim=1).argmax(1)
            if step % 20 == 0:
                print(f"batch {step:3d}  best {best.tolist()}", flush=True)
        took.append(time.perf_counter() - start)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
