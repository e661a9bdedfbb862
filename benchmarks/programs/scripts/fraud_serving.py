"""Card payments are scored by an ensemble spread over three ranks; inference only.

Rank 0 is the front end: it takes a batch of payments, broadcasts it, scores
with its own members as well, gathers the scores and decides.

    torchrun --nproc-per-node 3 fraud_serving.py [--fault new-release]

--fault new-release: two changes of one release. The scores come back as
Python objects, a dictionary per payment (gather_object), and two of the five members
on rank 2 were exported in float64.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

FEATURES, PAYMENTS, MEMBERS, STEPS = 64, 1280, 5, 160


class Member(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Node:
    def __init__(self, rank, release):
        self.members = nn.ModuleList(Member(10 * rank + i) for i in range(MEMBERS)).eval()
        if release and rank == 2:
            self.members[3:].to(torch.float64)
        self.rank, self.release = rank, release

    @torch.inference_mode()
    def score(self, payments):
        scores = [m(payments.to(m.net[0].weight.dtype)).float() for m in self.members]
        return torch.stack(scores).mean(0)

    def rows(self, scores):
        return [
            {"payment": i, "score": s, "node": self.rank, "version": "2.1"}
            for i, s in enumerate(scores.tolist())
        ]


class Frontend:
    def __init__(self):
        self.gen = torch.Generator().manual_seed(0)
        self.blocked = 0

    def accept(self):
        raw = torch.randn(PAYMENTS, FEATURES, generator=self.gen)
        raw[:, 0] = raw[:, 0].exp()  # amounts
        return (raw - raw.mean(0)) / raw.std(0)

    def decide(self, scores):
        mean = torch.stack(scores).mean(0)
        self.blocked += int((mean > mean.mean() + 3 * mean.std()).sum())


def handle(node, frontend, rank, world):
    payments = frontend.accept() if rank == 0 else torch.empty(PAYMENTS, FEATURES)
    dist.broadcast(payments, src=0)
    scores = node.score(payments)
    if node.release:
        rows = node.rows(scores)
        inbox = [None] * world if rank == 0 else None
        dist.gather_object(rows, inbox, dst=0)
        if rank == 0:
            frontend.decide([torch.tensor([row["score"] for row in rows]) for rows in inbox])
    else:
        inbox = [torch.empty(PAYMENTS) for _ in range(world)] if rank == 0 else None
        dist.gather(scores, inbox, dst=0)
        if rank == 0:
            frontend.decide(inbox)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "new-release"])
    release = parser.parse_args().fault == "new-release"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    node = Node(rank, release)
    frontend = Frontend() if rank == 0 else None
    took = []
    for request in range(STEPS):
        began = time.perf_counter()
        handle(node, frontend, rank, world)
        took.append(time.perf_counter() - began)
        if rank == 0 and request % 40 == 39:
            print(f"{request + 1} batches, {frontend.blocked} payments blocked", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(took[5:]) / len(took[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
