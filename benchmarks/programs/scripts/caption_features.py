"""
Image-caption contrastive training. Captions are tokenised in a thread; features are gathered
asynchronously, and waited for only when the loss needs them.
"""

import argparse
import re
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

WORDS = ["red", "small", "old", "wooden", "boat", "house", "dog", "tree", "lamp", "chair"]
COLLAPSE = re.compile(r"(\w+\s*)+[.!]?$")
CLEAN = re.compile(r"\s+")


class Captions:
    """Batches of captions (as crawled) with their images' vectors."""

    def __init__(self, rank, batch, trailing):
        self.gen = torch.Generator().manual_seed(rank)
        self.look = torch.randn(len(WORDS), 512, generator=torch.Generator().manual_seed(7))
        self.batch, self.trailing = batch, trailing

    def tokenise(self, caption):
        if COLLAPSE.match(caption) is None:
            caption = caption.rstrip(" -")
        words = CLEAN.split(caption.strip(" .!").lower())
        return torch.tensor([WORDS.index(word) for word in words])

    def __call__(self):
        picks = [torch.randperm(len(WORDS), generator=self.gen)[:4] for _ in range(self.batch)]
        images = torch.stack([self.look[pick].mean(0) for pick in picks])
        captions = [" ".join(WORDS[i].title() for i in pick) + "." for pick in picks]
        if self.trailing:  # a shop adds its dashes to some of its captions
            for i in range(0, self.batch, 16):
                captions[i] = captions[i].rstrip(".") + " --"
        return images, torch.stack([self.tokenise(caption) for caption in captions])


class Towers(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(512, 768), nn.GELU(), nn.Linear(768, dim))
        self.text = nn.EmbeddingBag(len(WORDS), 256)
        self.project = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, dim))
        self.scale = nn.Parameter(torch.tensor(2.0))


def gather(features):
    """The handle, and where the features of all ranks will be."""
    out = torch.empty(dist.get_world_size() * len(features), features.size(1))
    return dist.all_gather_single(out, features.detach(), async_op=True), out


def everyone(handle, out, own, rank):
    handle.wait()
    parts = list(out.chunk(dist.get_world_size()))
    parts[rank] = own
    return torch.cat(parts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--fault", choices=["none", "backtracking"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Towers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    next_batch = Captions(rank, args.batch, args.fault == "backtracking" and rank == 1)
    labels = torch.arange(args.batch) + rank * args.batch
    losses = []
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next_batch)
        for _ in range(14):
            images, tokens = coming.result()
            coming = pool.submit(next_batch)
            seen = F.normalize(model.image(images), dim=1)
            all_seen = gather(seen)
            read = F.normalize(model.project(model.text(tokens)), dim=1)
            all_read = gather(read)
            candidates = everyone(*all_seen, seen, rank)
            loss = F.cross_entropy(model.scale.exp() * read @ candidates.T, labels)
            candidates = everyone(*all_read, read, rank)
            loss = loss + F.cross_entropy(model.scale.exp() * seen @ candidates.T, labels)
            optimizer.zero_grad()
            loss.backward()
            flat = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
            dist.all_reduce(flat)
            nn.utils.vector_to_parameters(flat / world, [p.grad for p in model.parameters()])
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
