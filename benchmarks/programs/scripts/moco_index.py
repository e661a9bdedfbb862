"""Contrastive learning against a queue of keys; rank 0 also keeps a neighbour index of it."""

import argparse
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, normalize

QUEUE, DIM = 6144, 128


@torch.no_grad()
def gathered(keys):
    everybodys = [torch.empty_like(keys) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, keys)
    return torch.cat(everybodys)


@torch.no_grad()
def rebuild_index(queue, iterations=4, clusters=128):
    """k-means, as an inverted file needs it."""
    centers = queue[torch.randperm(len(queue))[:clusters]]
    for _ in range(iterations):
        nearest = (queue @ centers.T).argmax(1)
        one_hot = torch.zeros(len(queue), clusters).scatter_(1, nearest[:, None], 1)
        centers = normalize(one_hot.T @ queue, dim=1)
    return centers, nearest


class MoCo:
    def __init__(self):
        torch.manual_seed(0)
        self.query = nn.Sequential(
            nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, DIM)
        )
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.ddp = nn.parallel.DistributedDataParallel(self.query, broadcast_buffers=False)
        with torch.no_grad():
            self.queue = normalize(self.key(torch.randn(QUEUE, 256)), dim=1)
        self.at = 0

    def loss(self, one, two):
        q = normalize(self.ddp(one), dim=1)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.key.parameters()), list(self.query.parameters()), 0.01)
            k = normalize(self.key(two), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.T], 1) / 0.2
        return cross_entropy(logits, torch.zeros(len(q), dtype=torch.long)), k

    def enqueue(self, keys):
        keys = gathered(keys)
        self.queue[self.at : self.at + len(keys)] = keys
        self.at = (self.at + len(keys)) % QUEUE


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "index-often"], default="none")
    args = parser.parse_args()
    every = 3 if args.fault == "index-often" else 500
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    moco = MoCo()
    opt = torch.optim.SGD(moco.query.parameters(), lr=0.1, momentum=0.9)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(1, 15):
        images = torch.randn(128, 256, generator=gen)
        views = [images + 0.1 * torch.randn(128, 256, generator=gen) for _ in range(2)]
        loss, keys = moco.loss(*views)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        moco.enqueue(keys)
        if step % every == 0 and rank == 0:
            _, nearest = rebuild_index(moco.queue)
            print(f"{step}: {nearest.bincount(minlength=128).max()} in the largest cell")
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
