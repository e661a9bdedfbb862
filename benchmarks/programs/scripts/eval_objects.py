"""Every second step the validation set is scored in shards, and the scores are gathered."""

import argparse
import collections

import torch
import torch.distributed as dist
from torch import nn


def build():
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(200, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 5)
    )


def sample(n, gen):
    x = torch.randn(n, 200, generator=gen)
    return x, x[:, :5].argmax(1)


@torch.no_grad()
def score(net, shard):
    """Hits and misses by class."""
    net.eval()
    hits = collections.Counter()
    for x, y in zip(*(part.split(256) for part in shard)):
        for truth, guess in zip(y.tolist(), net(x).argmax(1).tolist()):
            hits[truth, truth == guess] += 1
    net.train()
    return dict(hits)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "long-shard"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    ddp = nn.parallel.DistributedDataParallel(build())
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    shard = sample(4096 if args.fault == "long-shard" and rank == 1 else 512, gen)
    accuracy = []
    for step in range(1, args.steps + 1):
        x, y = sample(128, gen)
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        if step % 2 == 0:
            parts = [None] * size
            dist.all_gather_object(parts, score(ddp.module, shard))
            total = sum(sum(part.values()) for part in parts)
            right = sum(n for part in parts for (_, hit), n in part.items() if hit)
            accuracy.append(right / total)
            if rank == 0:
                print(f"step {step}: accuracy {accuracy[-1]:.2%} of {total}")
    assert accuracy[-1] > accuracy[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
