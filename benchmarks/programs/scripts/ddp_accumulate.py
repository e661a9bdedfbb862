"""Fine-tunes a small classifier with gradient accumulation."""

import argparse
import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ap = argparse.ArgumentParser(description=__doc__)
ap.add_argument("--accum", type=int, default=4)
ap.add_argument("--updates", type=int, default=14)
ap.add_argument("--fault", choices=("none", "no-no-sync", "slow-loader"), default="none")


class Tagger(torch.nn.Module):
    def __init__(self, vocab=2000, dim=256, classes=4):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab, dim)
        self.up = torch.nn.Linear(dim, 4 * dim)
        self.down = torch.nn.Linear(4 * dim, dim)
        self.head = torch.nn.Linear(dim, classes)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + self.down(F.relu(self.up(h)))
        return self.head(h.mean(1))


class Tokens(torch.utils.data.IterableDataset):
    """Endless sentences whose class is written in their first token."""

    def __init__(self, seed, read_ms=0.0):
        self.seed, self.read_ms = seed, read_ms

    def __iter__(self):
        import time

        rng = torch.Generator().manual_seed(self.seed)
        while True:
            time.sleep(self.read_ms / 1e3)
            label = torch.randint(0, 4, (8,), generator=rng)
            tokens = torch.randint(4, 2000, (8, 16), generator=rng)
            tokens[:, ::2] = label[:, None]
            yield tokens, label


def run(args):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DistributedDataParallel(Tagger())
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    slow = args.fault == "slow-loader" and rank == 1
    loader = iter(
        torch.utils.data.DataLoader(Tokens(10 + rank, 10.0 if slow else 0.0), batch_size=None)
    )
    history = []
    for update in range(args.updates):
        total = 0.0
        for micro in range(args.accum):
            tokens, label = next(loader)
            last = micro == args.accum - 1
            quiet = not last and args.fault != "no-no-sync"
            with net.no_sync() if quiet else contextlib.nullcontext():
                loss = F.cross_entropy(net(tokens), label) / args.accum
                loss.backward()
            total += loss.item()
        opt.step()
        opt.zero_grad(set_to_none=True)
        history.append(total)
        if rank == 0 and update % 5 == 0:
            print(f"[{update}] loss={total:.3f}", flush=True)
    assert history[-1] < history[0]


if __name__ == "__main__":
    run(ap.parse_args())
    dist.destroy_process_group()
