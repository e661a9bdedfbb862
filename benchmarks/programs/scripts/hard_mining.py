"""Metric learning with mined batches: rank 0 chooses who trains on what and tells the others."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--fault", choices=["none", "sort-in-python"], default="none")
ap.add_argument("--per-rank", type=int, default=64)

IDENTITIES, PER_IDENTITY, PIXELS = 1500, 20, 128
SAMPLES = IDENTITIES * PER_IDENTITY


class Faces:
    def __init__(self):
        gen = torch.Generator().manual_seed(4)
        self.prototypes = torch.randn(IDENTITIES, PIXELS, generator=gen)
        self.identity = torch.arange(SAMPLES) // PER_IDENTITY

    def __getitem__(self, indices):
        identity = self.identity[indices]
        views = self.prototypes[identity] + 0.9 * torch.randn(2, len(indices), PIXELS)
        return views, identity


class Miner:
    """Remembers each sample's last loss, from an earlier run at first, and draws half of a batch among the hardest."""

    def __init__(self, in_python):
        self.loss = 9 + torch.randn(SAMPLES, generator=torch.Generator().manual_seed(6))
        self.hardest = self.hardest_in_python if in_python else self.hardest_by_topk
        self.gen = torch.Generator().manual_seed(5)

    def hardest_by_topk(self, n):
        return self.loss.topk(n).indices

    def hardest_in_python(self, n):
        ranking = sorted(enumerate(self.loss.tolist()), key=lambda pair: pair[1], reverse=True)
        return torch.tensor([index for index, _ in ranking[:n]])

    def draw(self, n):
        hard = self.hardest(4 * n)
        hard = hard[torch.randperm(len(hard), generator=self.gen)[: n // 2]]
        easy = torch.randint(SAMPLES, (n - n // 2,), generator=self.gen)
        return torch.cat([hard, easy])

    def update(self, indices, losses):
        self.loss[indices] = losses


def main():
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(PIXELS, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 64)
    )
    net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    faces = Faces()
    miner = Miner(args.fault == "sort-in-python") if rank == 0 else None
    torch.manual_seed(rank)
    history = []
    for _ in range(14):
        indices = torch.empty(world * args.per_rank, dtype=torch.int64)
        if miner:
            indices.copy_(miner.draw(len(indices)))
        dist.broadcast(indices, src=0)
        mine = indices.chunk(world)[rank]
        views, identity = faces[mine]
        a, b = F.normalize(net(views.flatten(0, 1)), dim=-1).chunk(2)
        positive = identity[:, None] == identity
        logp = (a @ b.T / 0.1).log_softmax(-1)
        losses = -(logp * positive).sum(-1) / positive.sum(-1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
        everyone = torch.empty(len(indices)) if rank == 0 else None
        parts = list(everyone.chunk(world)) if rank == 0 else None
        dist.gather(losses.detach(), parts, dst=0)
        if miner:
            miner.update(indices, everyone)
            history.append(everyone.mean().item())
    if rank == 0:
        assert history[-1] < history[0], history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
