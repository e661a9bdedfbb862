"""Sequences of different lengths; ranks that draw the long ones have more to do."""

import argparse

import torch
import torch.distributed as dist
from torch import nn


def lengths(rank, bucketed):
    """How long each step's sequences are: sorted files give one rank all the long ones."""
    if bucketed:
        return [56 if rank == 1 else 16] * 14
    return [36] * 14


class Reader(nn.Module):
    def __init__(self, vocab=100, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.gru = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.out(self.gru(self.embed(tokens))[0])


def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--batch", type=int, default=24)
    cli.add_argument("--fault", default="none", choices=["none", "uneven-batches"])
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Reader())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for length in lengths(rank, args.fault == "uneven-batches"):
        tokens = torch.randint(0, 10, (args.batch, length + 1), generator=gen).cumsum(1) % 100
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    print("rank", rank, "ppl", [round(2.718281828**loss, 1) for loss in losses])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
