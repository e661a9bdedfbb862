"""FSDP, the first one; every rank cuts its own text into tokens as it goes."""

import argparse
import difflib
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WORDS = "the quick brown fox jumps over a lazy dog while seven wizards quietly vex my job".split()
SPLIT = re.compile(r"\s*(\w+|[^\w\s])")


class Tokenizer:
    def __init__(self, fast):
        self.fast = fast
        self.ids = {word: i for i, word in enumerate(sorted({*WORDS, "."}))}

    def __call__(self, text):
        if not self.fast:  # the pure Python fallback, with spelling correction
            return [self.nearest(word) for word in SPLIT.findall(text)]
        return [self.ids[word] for word in text.replace(".", " .").split()]

    def nearest(self, word):
        near = difflib.get_close_matches(word, self.ids, n=1, cutoff=0.0)
        return self.ids[near[0]] if near else 0


def documents(rank):
    gen = torch.Generator().manual_seed(rank)
    while True:
        start = int(torch.randint(0, len(WORDS), (1,), generator=gen))
        yield " ".join(WORDS[(start + i) % len(WORDS)] for i in range(64)) + "."


class Layer(nn.TransformerEncoderLayer):
    pass


class LM(nn.Module):
    def __init__(self, vocab, dim=192):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            Layer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.head = nn.Linear(dim, vocab)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "slow-tokenizer"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokenizer = Tokenizer(fast=not (args.fault == "slow-tokenizer" and rank == 0))
    torch.manual_seed(0)
    model = FSDP(
        LM(len(tokenizer.ids)),
        auto_wrap_policy=ModuleWrapPolicy({Layer}),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = documents(rank)
    losses = []
    for _ in range(14):
        batch = torch.tensor([tokenizer(next(text)) for _ in range(6)])
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        losses.append(loss.item())
    if rank == 0:
        print(*(f"{loss:.3f}" for loss in losses))
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
