"""Next-item recommendation: a big embedding table whose gradient is sparse."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ITEMS, WIDTH, HISTORY, BATCH = 60_000, 32, 20, 64


class NextItem(nn.Module):
    """A GRU over what a user has seen, scored against one bought item and some that were not."""

    def __init__(self, sparse: bool):
        super().__init__()
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=sparse)
        nn.init.normal_(self.items.weight, std=0.05)
        self.gru = nn.GRU(WIDTH, 96, batch_first=True)
        self.out = nn.Linear(96, WIDTH)

    def forward(self, seen, candidates):
        both = self.items(torch.cat([seen, candidates], dim=1))
        _, state = self.gru(both[:, : seen.size(1)])
        query = self.out(state[-1])
        return torch.einsum("bw,bcw->bc", query, both[:, seen.size(1) :])


class Sessions(torch.utils.data.IterableDataset):
    """Users who walk through the catalogue in strides, most of them in its popular part."""

    def __init__(self, rank: int):
        self.rank = rank

    def __iter__(self):
        g = torch.Generator().manual_seed(30 + self.rank)
        while True:
            start = (2000 * torch.rand(BATCH, 1, generator=g).square()).long()
            walk = start + 3 * torch.arange(HISTORY + 1)
            negatives = torch.randint(ITEMS, (BATCH, 15), generator=g)
            yield walk[:, :-1], torch.cat([walk[:, -1:], negatives], dim=1)


def make_optimizers(model, sparse):
    table = model.module.items
    rest = [p for p in model.parameters() if p is not table.weight]
    if sparse:
        first = torch.optim.SparseAdam(table.parameters(), lr=0.02)
    else:
        first = torch.optim.Adagrad(table.parameters(), lr=0.05)
    return first, torch.optim.AdamW(rest, lr=3e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "dense-gradient"], default="none")
    parser.add_argument("--steps", type=int, default=14)
    args = parser.parse_args()
    dist.init_process_group(backend="gloo")
    torch.manual_seed(8)
    sparse = args.fault == "none"
    model = DDP(NextItem(sparse))
    optimizers = make_optimizers(model, sparse)
    losses = []
    for step, (seen, candidates) in enumerate(Sessions(dist.get_rank())):
        if step == args.steps:
            break
        scores = model(seen, candidates)
        loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
