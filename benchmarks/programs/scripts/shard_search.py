"""Exact search in vectors that are spread over four ranks.

Rank 0 hands out each batch of queries, all look among their own vectors, and rank 0 looks once
more, in full precision, at the candidates that all have found.
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F

DIM, QUERIES, CANDIDATES, TOP = 256, 48, 40, 10


class Shard:
    """Unit vectors, of which half precision is searched."""

    def __init__(self, size, rank):
        gen = torch.Generator().manual_seed(rank)
        self.vectors = F.normalize(torch.randn(size, DIM, generator=gen), dim=1)
        self.coarse = self.vectors.bfloat16().float()
        self.first_id = size * rank

    def search(self, queries):
        best = (queries @ self.coarse.T).topk(CANDIDATES, dim=1).indices
        return best + self.first_id, self.vectors[best]


class Collector:
    """What everybody has found, at rank 0, in memory that is kept."""

    def __init__(self, to_all):
        self.to_all = to_all
        self.ids = self.vectors = None
        if to_all or dist.get_rank() == 0:
            world, shape = dist.get_world_size(), (QUERIES, CANDIDATES)
            self.ids = [torch.empty(shape, dtype=torch.int64) for _ in range(world)]
            self.vectors = [torch.empty(*shape, DIM) for _ in range(world)]

    def collect(self, ids, vectors):
        if self.to_all:
            dist.all_gather(self.ids, ids)
            dist.all_gather(self.vectors, vectors)
        else:
            dist.gather(ids, self.ids, dst=0)
            dist.gather(vectors, self.vectors, dst=0)


def rescore(queries, all_ids, all_vectors):
    scores = torch.cat([torch.bmm(each, queries[:, :, None])[..., 0] for each in all_vectors], 1)
    best = scores.topk(TOP, dim=1)
    return torch.cat(all_ids, 1).gather(1, best.indices), best.values


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--vectors", type=int, default=1500)
    parser.add_argument("--fault", choices=["none", "all-gather"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    shard = Shard(args.vectors, rank)
    collector = Collector(to_all=args.fault == "all-gather")
    gen = torch.Generator().manual_seed(99)
    answers = []
    for _ in range(args.batches):
        queries = torch.empty(QUERIES, DIM)
        if rank == 0:
            wanted = torch.randint(args.vectors, (QUERIES,), generator=gen)
            noise = 0.02 * torch.randn(QUERIES, DIM, generator=gen)
            queries = F.normalize(shard.vectors[wanted] + noise, dim=1)
        dist.broadcast(queries, src=0)
        collector.collect(*shard.search(queries))
        if rank == 0:
            ids, _ = rescore(queries, collector.ids, collector.vectors)
            answers.append((ids[:, 0] == wanted).float().mean().item())
    if rank == 0:
        print(f"found {sum(answers) / len(answers):.3f} of {args.vectors * world} vectors")
        assert sum(answers) / len(answers) > 0.98
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
