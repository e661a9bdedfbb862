"""Embeddings as short codes, decoded by the rank that owns the id: by its hash, or by its range."""

import argparse

import torch
import torch.distributed as dist
from torch import nn

ROWS, CODE, DIM, FIELDS = 20000, 32, 64, 16


class Exchange(torch.autograd.Function):
    """all_to_all_single with splits, and the way back."""

    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.splits = sent, received
        out = x.new_empty(sum(received), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.splits
        back = grad.new_empty(sum(sent), grad.size(1))
        dist.all_to_all_single(back, grad.contiguous(), sent, received)
        return back, None, None


class ShardedEmbedding(nn.Module):
    def __init__(self, owner):
        super().__init__()
        self.owner = owner
        self.table = nn.Embedding(ROWS, CODE)  # only the rows it owns are ever used
        self.decoder = nn.Sequential(nn.Linear(CODE, 256), nn.ReLU(), nn.Linear(256, DIM))

    def forward(self, ids):
        world = dist.get_world_size()
        owner = self.owner(ids.flatten(), world)
        order = owner.argsort(stable=True)
        wanted = torch.bincount(owner, minlength=world)
        asked = torch.empty_like(wanted)
        dist.all_to_all_single(asked, wanted)
        wanted, asked = wanted.tolist(), asked.tolist()
        theirs = torch.empty(sum(asked), dtype=torch.int64)
        dist.all_to_all_single(theirs, ids.flatten()[order], asked, wanted)
        rows = Exchange.apply(self.decoder(self.table(theirs)), asked, wanted)
        return rows[order.argsort()].view(*ids.shape, DIM)


def by_hash(ids, world):
    return ids * 2654435761 % 65537 % world


def by_range(ids, world):
    return ids * world // ROWS


def batch(n, generator):
    """Ids are given out by popularity: the small ones are hot."""
    u = torch.rand(n, FIELDS, generator=generator)
    ids = (ROWS * u.pow(2)).long().clamp(max=ROWS - 1)
    return ids, ((ids % 7 == 0).float().mean(1, keepdim=True) > 0.13).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=768)
    parser.add_argument("--fault", choices=["none", "by-range"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    embedding = ShardedEmbedding(by_range if args.fault == "by-range" else by_hash)
    dense = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(FIELDS * DIM, 256), nn.ReLU(), nn.Linear(256, 1))
    )
    optimizer = torch.optim.Adagrad([*embedding.parameters(), *dense.parameters()], lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(22):
        ids, y = batch(args.batch_size, generator)
        logits = dense(embedding(ids).flatten(1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
