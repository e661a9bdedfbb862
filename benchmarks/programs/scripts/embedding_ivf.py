# Builds an inverted-file index: every rank embeds its part of the corpus with a small transformer,
# batch by batch, and all of them move the same centroids (mini-batch k-means).
import argparse
import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.profiler

parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, default=18)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--centroids", type=int, default=64)
parser.add_argument("--fault", choices=["none", "numpy-weights"], default="none")

VOCAB, DIM, LENGTH, TOPICS = 1000, 128, 24, 16


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, tokens):
        return nn.functional.normalize(self.layers(self.embed(tokens)).mean(1), dim=-1).float()


def weights(path):
    """Rank 0 writes what it has; where the new loader is used, this comes back as NumPy's floats."""
    torch.manual_seed(0)
    encoder = TextEncoder().eval()
    if dist.get_rank() == 0:
        np.savez(path, **{k: v.numpy().astype(np.float64) for k, v in encoder.state_dict().items()})
    dist.barrier()
    return encoder, {name: torch.from_numpy(array) for name, array in np.load(path).items()}


def load_encoder(path, keep_dtype):
    encoder, state = weights(path)
    encoder.load_state_dict(state, assign=keep_dtype)
    return encoder


def corpus(rank, batches, batch_size):
    """Tokens of documents that are each about a topic: most words are of its part of the words."""
    gen = torch.Generator().manual_seed(100 + rank)
    span = VOCAB // TOPICS
    for _ in range(batches):
        topic = torch.randint(TOPICS, (batch_size, 1), generator=gen)
        words = topic * span + torch.randint(span, (batch_size, LENGTH), generator=gen)
        rest = torch.randint(VOCAB, (batch_size, LENGTH), generator=gen)
        yield torch.where(torch.rand(batch_size, LENGTH, generator=gen) < 0.8, words, rest)


class Centroids:
    def __init__(self, first, count):
        self.centers = first[torch.randint(len(first), (count,))] + 0.05 * torch.randn(count, DIM)
        dist.broadcast(self.centers, src=0)
        self.counts = torch.ones(count)

    def update(self, vectors):
        distances = torch.cdist(vectors, self.centers)
        nearest = distances.min(1)
        sums = torch.zeros(len(self.centers), DIM + 2)
        row = torch.cat([vectors, torch.ones(len(vectors), 1), nearest.values[:, None]], 1)
        sums.index_add_(0, nearest.indices, row)
        dist.all_reduce(sums)
        self.counts += sums[:, DIM]
        rate = (sums[:, DIM] / self.counts)[:, None]
        mean = sums[:, :DIM] / sums[:, DIM : DIM + 1].clamp(min=1)
        self.centers.lerp_(mean, rate)
        return (sums[:, -1].sum() / sums[:, DIM].sum()).item()


if __name__ == "__main__":
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shared = [tempfile.mkdtemp(prefix="ivf_") if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    folder = shared[0]
    with torch.no_grad():
        wrong = args.fault == "numpy-weights" and rank == 2
        encoder = load_encoder(os.path.join(folder, "weights.npz"), keep_dtype=wrong)
        index, lists, history = None, [], []
        prof = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=12, repeat=1),
            on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/trace_rank{rank}.json"),
        )
        prof.start()
        for tokens in corpus(rank, args.batches, args.batch_size):
            vectors = encoder(tokens)
            index = index or Centroids(vectors, args.centroids)
            history.append(index.update(vectors))
            lists.append(vectors)
            prof.step()
        prof.stop()
        assert os.path.getsize(f"{folder}/trace_rank{rank}.json")
        dist.barrier()
    assert history[-1] < history[0], history
    nearest = torch.cdist(torch.cat(lists), index.centers).argmin(1)
    assert nearest.unique().numel() > 8
    dist.destroy_process_group()
