"""Sharded nearest-neighbour service: one front end, every rank searches a shard.

Rank 0 takes a request (a batch of query vectors), broadcasts it, all ranks look up their
shard of the collection, and rank 0 gathers and merges the best ten of each.  3 ranks, no
training.

    torchrun --nproc-per-node 3 text_search.py [--fault text_requests]

Requests normally arrive as packed floats.  With --fault text_requests the front end gets them
as comma-separated text, which it parses and normalises number by number in Python before it
can broadcast; the other ranks are idle meanwhile.
"""

import argparse
import math
import struct
import time

import torch
import torch.distributed as dist

DIM, SHARD, QUERIES, TOP, REQUESTS = 64, 9000, 224, 10, 26


def build_shard(rank):
    g = torch.Generator().manual_seed(rank)
    return torch.nn.functional.normalize(torch.randn(SHARD, DIM, generator=g), dim=1)


class Shard:
    def __init__(self, rank):
        self.offset = rank * SHARD
        self.vectors = build_shard(rank)

    def search(self, q):
        score, idx = (q @ self.vectors.t()).topk(TOP, dim=1)
        return torch.stack([score, (idx + self.offset).float()])


class FrontEnd:
    """Produces requests as a client would send them, and decodes them."""

    def __init__(self, text):
        self.text = text
        g = torch.Generator().manual_seed(99)
        self.answers, self.payloads = [], []
        collection = torch.cat([build_shard(r) for r in range(dist.get_world_size())])
        for _ in range(REQUESTS):
            ids = torch.randint(0, len(collection), (QUERIES,), generator=g)
            q = 3.0 * (collection[ids] + 0.02 * torch.randn(QUERIES, DIM, generator=g))
            self.answers.append(ids)
            self.payloads.append(self.encode(q))

    def encode(self, q):
        if self.text:
            return "\n".join(",".join(f"{v:.6f}" for v in row) for row in q.tolist())
        return struct.pack(f"<{q.numel()}f", *q.flatten().tolist())

    def decode(self, payload):
        if not self.text:
            q = torch.frombuffer(bytearray(payload), dtype=torch.float32).view(QUERIES, DIM)
            return torch.nn.functional.normalize(q, dim=1)
        rows = []
        for line in payload.split("\n"):
            row = [float(cell.strip()) for cell in line.split(",")]
            if any(math.isnan(v) or math.isinf(v) for v in row):
                raise ValueError("bad query")
            length = math.sqrt(sum(v * v for v in row))
            rows.append([v / length for v in row])
        return torch.tensor(rows)


def serve(rank, world, text):
    shard = Shard(rank)
    front = FrontEnd(text) if rank == 0 else None
    dist.barrier()
    hits, times = 0, []
    for r in range(REQUESTS):
        t0 = time.perf_counter()
        q = front.decode(front.payloads[r]) if rank == 0 else torch.empty(QUERIES, DIM)
        dist.broadcast(q, src=0)
        best = shard.search(q)
        parts = [torch.empty_like(best) for _ in range(world)] if rank == 0 else None
        dist.gather(best, parts, dst=0)
        if rank == 0:
            both = torch.cat(parts, dim=2)
            order = both[0].topk(TOP, dim=1).indices
            found = both[1].gather(1, order).long()
            hits += (found[:, 0] == front.answers[r]).sum().item()
            times.append(time.perf_counter() - t0)
    return hits, times


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["none", "text_requests"], default="none")
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    hits, times = serve(rank, world, args.fault == "text_requests")
    if rank == 0:
        recall = hits / (REQUESTS * QUERIES)
        assert recall > 0.95, recall
        print(f"recall@1 {recall:.3f}")
        print(f"mean step {sum(times[1:]) / len(times[1:]) * 1e3:.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
