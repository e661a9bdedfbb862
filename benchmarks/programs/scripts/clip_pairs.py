"""Image-text contrastive training with the negatives of all ranks.

Each rank embeds its own pairs; the embeddings are gathered so that the softmax
runs over the global batch.  Pairs whose caption is the same as the anchor's are
masked out of the negatives.

    torchrun --nproc-per-node 2 clip_pairs.py [--fault gather_objects]

Normally two tensors and the caption hashes are gathered.  --fault gather_objects
gathers a list of dictionaries, one per sample, with all_gather_object, so that in
each step everything is pickled on one side and unpickled on the other.
"""

import argparse
import time
import zlib

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

PER_RANK, DIM, VOCAB, LEN = 24, 128, 500, 12


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.img = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=2, padding=1),
            nn.GELU(),
            nn.Conv2d(32, 64, 4, stride=4),
            nn.GELU(),
            nn.Flatten(),
            nn.Linear(64 * 64, 256),
            nn.GELU(),
            nn.Linear(256, DIM),
        )
        self.tok = nn.EmbeddingBag(VOCAB, 128)
        self.txt = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, DIM))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pixels, tokens):
        a = F.normalize(self.img(pixels), dim=-1)
        b = F.normalize(self.txt(self.tok(tokens)), dim=-1)
        return a, b, self.logit_scale.exp()


class Pairs:
    """Concept c -> noisy image around a template, caption made of c's words."""

    def __init__(self, seed):
        t = torch.Generator().manual_seed(77)
        self.images = torch.randn(160, 3, 64, 64, generator=t)
        self.words = torch.randint(0, VOCAB, (160, LEN), generator=t)
        self.g = torch.Generator().manual_seed(seed)

    def draw(self):
        c = torch.randint(0, 160, (PER_RANK,), generator=self.g)
        px = self.images[c] + 0.5 * torch.randn(PER_RANK, 3, 64, 64, generator=self.g)
        tokens = self.words[c]
        captions = [" ".join(f"w{i}" for i in row) for row in tokens.tolist()]
        return px, tokens, captions


def with_own(parts, own, rank):
    """Put the local tensor, which carries gradients, in its place."""
    return torch.cat([own if r == rank else p for r, p in enumerate(parts)])


def gather_tensors(a, b, captions):
    rank, world = dist.get_rank(), dist.get_world_size()
    both = torch.cat([a, b], dim=1).detach()
    parts = [torch.empty_like(both) for _ in range(world)]
    work = dist.all_gather(parts, both, async_op=True)
    h = torch.tensor([zlib.crc32(c.encode()) for c in captions])
    hs = [torch.empty_like(h) for _ in range(world)]
    dist.all_gather(hs, h)
    work.wait()
    return (
        with_own([p[:, :DIM] for p in parts], a, rank),
        with_own([p[:, DIM:] for p in parts], b, rank),
        torch.cat(hs),
    )


def gather_samples(a, b, captions):
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = [
        {
            "image": a[i].detach().clone(),
            "text": b[i].detach().clone(),
            "caption": captions[i],
            "rank": rank,
        }
        for i in range(len(captions))
    ]
    out = [None] * world
    dist.all_gather_object(out, mine)
    img = [torch.stack([s["image"] for s in part]) for part in out]
    txt = [torch.stack([s["text"] for s in part]) for part in out]
    h = torch.tensor([zlib.crc32(s["caption"].encode()) for part in out for s in part])
    return with_own(img, a, rank), with_own(txt, b, rank), h


def contrastive(a, b, scale, hashes):
    logits = scale * a @ b.t()
    same = hashes[:, None] == hashes[None, :]
    same.fill_diagonal_(False)
    logits = logits.masked_fill(same, -1e4)
    target = torch.arange(len(a))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", default="none", choices=["none", "gather_objects"])
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Towers(), broadcast_buffers=False)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    pairs = Pairs(rank)
    gather = gather_samples if args.fault == "gather_objects" else gather_tensors
    curve, spent = [], 0.0
    warm, steps = 3, 28
    for step in range(steps):
        px, tokens, captions = pairs.draw()
        t0 = time.perf_counter()
        a, b, scale = model(px, tokens)
        ga, gb, hashes = gather(a, b, captions)
        loss = contrastive(ga, gb, scale, hashes)
        opt.zero_grad()
        loss.backward()
        opt.step()
        curve.append(loss.item())
        if step >= warm:
            spent += time.perf_counter() - t0
    if rank == 0:
        assert curve[-1] < curve[0]
        print(f"contrastive loss {curve[0]:.3f} -> {curve[-1]:.3f}")
        print(f"mean step {spent / (steps - warm) * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
