"""Stars of three ranks attract one another: blocks of positions go around a ring.

While a block is on its way to the next rank, the forces of that which has come are computed. The
last rank's build has no vectorised kernel, so it takes a few stars at a time.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

SOFT, DT = 0.05, 1e-3


def forces(at, others, mass, chunk):
    """Of the others on those at these places."""
    parts = []
    for some in at.split(chunk):
        apart = others[None] - some[:, None]
        near = apart.square().sum(-1).add_(SOFT).pow_(-1.5)
        parts.append(mass * (near[..., None] * apart).sum(1))
    return torch.cat(parts)


def potential(at, others, mass):
    """Half of what the stars have with the others; a star with itself is a constant."""
    squared = (at[:, None] - others[None]).square().sum(-1)
    return -0.5 * mass * mass * (squared + SOFT).rsqrt().sum()


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.following = (self.rank + 1) % self.world
        self.previous = (self.rank - 1) % self.world

    def blocks(self, mine):
        """Those of all ranks, mine first."""
        block = mine
        for hop in range(self.world):
            works = []
            if hop < self.world - 1:
                coming = torch.empty_like(block)
                ops = [
                    dist.P2POp(dist.isend, block, self.following),
                    dist.P2POp(dist.irecv, coming, self.previous),
                ]
                works = dist.batch_isend_irecv(ops)
            yield block
            for work in works:
                work.wait()
            if works:
                block = coming


def energy(ring, at, speed, mass):
    total = 0.5 * mass * speed.square().sum()
    for block in ring.blocks(at):
        total = total + potential(at, block, mass)
    dist.all_reduce(total)
    return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stars", type=int, default=480, help="of each rank")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "old-build"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ring = Ring()
    gen = torch.Generator().manual_seed(70 + ring.rank)
    at = torch.randn(args.stars, 3, generator=gen)
    speed = torch.randn(args.stars, 3, generator=gen) / 3
    mass = 1 / (args.stars * ring.world)
    chunk = 2 if args.fault == "old-build" and ring.rank == ring.world - 1 else 160
    start = energy(ring, at, speed, mass)
    times, pull = [], torch.zeros_like(at)
    for _ in range(args.steps):
        before = time.perf_counter()
        at = at + DT * speed + DT * DT / 2 * pull
        new = torch.zeros_like(at)
        for block in ring.blocks(at):
            new += forces(at, block, mass, chunk)
        speed = speed + DT / 2 * (pull + new)
        pull = new
        times.append(time.perf_counter() - before)
    end = energy(ring, at, speed, mass)
    assert abs(end - start) < 0.01 * abs(start), (start, end)
    if ring.rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
