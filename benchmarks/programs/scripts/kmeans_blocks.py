"""Lloyd's k-means on points spread over the ranks, block by block.

A step assigns all local points to their nearest centroid, sums points and counts per
centroid for each block of points, and combines the sums of all ranks.  3 ranks.

    torchrun --nproc-per-node 3 kmeans_blocks.py [--fault gather_partials]

Normally a rank adds up its blocks and the ranks do one all-reduce of K x (D+1) floats.
--fault gather_partials all-gathers the partial sums of every block of every rank and
each rank then adds them all up itself (for the sake of a fixed order of summation).
"""

import argparse
import time

import torch
import torch.distributed as dist

K, D = 256, 48
BLOCK, BLOCKS = 128, 64


class DistributedKMeans:
    def __init__(self, points, mode):
        self.x = points
        self.mode = mode
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.centroids = points[:K].clone() if self.rank == 0 else torch.empty(K, D)
        dist.broadcast(self.centroids, 0)

    def block_sums(self, xb):
        d2 = torch.addmm((self.centroids**2).sum(1), xb, self.centroids.t(), alpha=-2.0)
        best, idx = d2.min(1)
        acc = torch.zeros(K, D + 1)
        acc[:, :D].index_add_(0, idx, xb)
        acc[:, D] = torch.bincount(idx, minlength=K).float()
        inertia = (best + (xb**2).sum(1)).sum()
        return acc, inertia

    def combine(self, partials):
        if self.mode == "gather_partials":
            mine = torch.stack(partials)
            out = [torch.empty_like(mine) for _ in range(self.world)]
            dist.all_gather(out, mine)
            total = torch.zeros(K, D + 1)
            for part in out:
                for block in part:
                    total += block
            return total
        total = torch.stack(partials).sum(0)
        dist.all_reduce(total)
        return total

    def step(self):
        partials, inertia = [], torch.zeros(())
        for xb in self.x.split(BLOCK):
            acc, part = self.block_sums(xb)
            partials.append(acc)
            inertia += part
        total = self.combine(partials)
        count = total[:, D:]
        self.centroids = torch.where(count > 0, total[:, :D] / count.clamp(min=1), self.centroids)
        dist.all_reduce(inertia)
        return inertia.item()


def make_points(rank):
    g = torch.Generator().manual_seed(4)
    centers = 3 * torch.randn(120, D, generator=g)
    own = torch.Generator().manual_seed(90 + rank)
    which = torch.randint(0, 120, (BLOCK * BLOCKS,), generator=own)
    return centers[which] + torch.randn(BLOCK * BLOCKS, D, generator=own)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--fault", choices=["none", "gather_partials"], default="none")
    ap.add_argument("--iters", type=int, default=25)
    args = ap.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    km = DistributedKMeans(make_points(dist.get_rank()), args.fault)
    km.step()  # warm-up
    dist.barrier()
    t0 = time.perf_counter()
    trace = [km.step() for _ in range(args.iters)]
    ms = (time.perf_counter() - t0) / args.iters * 1e3
    if dist.get_rank() == 0:
        assert all(b <= a * 1.0001 for a, b in zip(trace, trace[1:])), "inertia went up"
        print(f"inertia {trace[0]:.4g} -> {trace[-1]:.4g}")
        print(f"mean step {ms:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
