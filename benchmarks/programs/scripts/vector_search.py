"""A sharded vector index: every rank asks all shards, and gets its own answers back."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, schedule

TOP = 10


class ShardedIndex:
    def __init__(self, vectors, fault):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.vectors, self.first, self.fault = vectors, self.rank * len(vectors), fault

    def exchange(self, x):
        """Row block i of x goes to rank i; what all sent me, side by side."""
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x.contiguous())
        return torch.cat(received.chunk(self.world), dim=1)

    @torch.inference_mode()
    def search(self, queries):
        everyone = [torch.empty_like(queries) for _ in range(self.world)]
        dist.all_gather(everyone, queries)
        scores = torch.cat(everyone) @ self.vectors.T
        if self.fault == "all-scores":
            best, row = self.exchange(scores).topk(TOP, dim=1)
            return best, row
        best, row = scores.topk(TOP, dim=1)
        # ids below 2**24 are exact in float32, so both travel in one message
        pairs = self.exchange(torch.cat([best, (row + self.first).float()], dim=1))
        best, ids = pairs.view(len(queries), self.world, 2, TOP).transpose(1, 2).unbind(1)
        best, choice = best.reshape(len(queries), -1).topk(TOP, dim=1)
        return best, ids.reshape(len(queries), -1).gather(1, choice).long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=9000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=80)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "vector_search"))
    parser.add_argument("--fault", choices=["none", "all-scores"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    corpus = torch.randn(world * args.rows, args.dim, generator=torch.Generator().manual_seed(5))
    corpus = F.normalize(corpus, dim=1)
    index = ShardedIndex(corpus[rank * args.rows :][: args.rows].clone(), args.fault)
    gen = torch.Generator().manual_seed(100 + rank)
    hits = 0
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for _ in range(22):
            wanted = torch.randint(len(corpus), (args.batch,), generator=gen)
            noise = 0.03 * torch.randn(args.batch, args.dim, generator=gen)
            _, ids = index.search(corpus[wanted] + noise)
            hits += (ids == wanted[:, None]).any(dim=1).sum().item()
            profiler.step()
    recall = hits / (22 * args.batch)
    print(f"rank {rank}: recall@{TOP} {recall:.3f}")
    assert recall > 0.95
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
