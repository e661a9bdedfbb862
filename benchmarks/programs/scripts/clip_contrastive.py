"""CLIP: images and captions of all ranks are contrasted with each other."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather


class Clip(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(768, width), nn.GELU(), nn.Linear(width, 64))
        self.text = nn.Sequential(nn.EmbeddingBag(1000, width), nn.GELU(), nn.Linear(width, 64))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        return [nn.functional.normalize(e, dim=1) for e in (self.image(image), self.text(text))]


class Pairs:
    """Pictures of a word, and captions that say it."""

    def __init__(self, rank, tokenize_s=0.0):
        self.gen, self.tokenize_s = torch.Generator().manual_seed(rank), tokenize_s
        self.look = torch.randn(1000, 768, generator=torch.Generator().manual_seed(99))

    def next(self, n=96):
        word = torch.randint(0, 1000, (n, 1), generator=self.gen)
        image = self.look[word[:, 0]] + 0.3 * torch.randn(n, 768, generator=self.gen)
        if self.tokenize_s:
            time.sleep(self.tokenize_s)  # a service
        return image, word.expand(n, 6).contiguous()


def main(fault):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    clip = nn.parallel.DistributedDataParallel(Clip())
    optimizer = torch.optim.AdamW(clip.parameters(), lr=2e-3)
    pairs = Pairs(rank, 0.018 if fault == "slow-tokenizer" and rank == 1 else 0.0)
    first = None
    for _ in range(14):
        ours = clip(*pairs.next())
        images, texts = (torch.cat(all_gather(each)) for each in ours)
        logits = clip.module.scale.exp() * images @ texts.T
        target = torch.arange(len(logits))
        loss = nn.functional.cross_entropy(logits, target)
        loss = (loss + nn.functional.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first = first or loss.item()
    print(f"contrastive loss {first:.3f} -> {loss.item():.3f}")
    assert loss.item() < first
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=["none", "slow-tokenizer"], default="none")
    main(parser.parse_args().fault)
