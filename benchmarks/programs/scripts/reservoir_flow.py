"""Pressure in a porous rock, of which each rank has some rows; sources change, the rock doesn't.

Rank 0 has read the rock's properties and broadcasts them: once, or before each step of time, as
long as the call is within the loop.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

ROWS, COLUMNS, LAYERS, SWEEPS = 360, 512, 6, 5


def read_rock():
    """Permeabilities of the layers to the right and below, and porosities; the file has doubles."""
    gen = torch.Generator().manual_seed(4)
    rough = torch.randn(3, LAYERS, ROWS // 8, COLUMNS // 8, generator=gen).double()
    rock = torch.nn.functional.interpolate(rough, (ROWS, COLUMNS), mode="bilinear")
    return torch.cat([rock[:2].exp() / 10, 1 + rock[2:].sigmoid()])


class Slab:
    """Some rows, with one more above and below of what the neighbours have."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows = ROWS // self.world
        self.start = self.rank * self.rows
        self.p = torch.zeros(LAYERS, self.rows + 2, COLUMNS)

    def take(self, rock):
        """The permeabilities of the edges around my cells."""
        rock = rock.float()
        right = rock[0][:, self.start : self.start + self.rows].clone()
        right[..., -1] = 0
        left = right.roll(1, -1)
        below = rock[1][:, self.start : self.start + self.rows].clone()
        above = rock[1][:, max(self.start - 1, 0) : self.start + self.rows - 1]
        if self.rank == 0:
            above = torch.cat([torch.zeros(LAYERS, 1, COLUMNS), above], 1)
        if self.rank == self.world - 1:
            below[:, -1] = 0
        self.edges = left, right, above, below
        self.pores = rock[2][:, self.start : self.start + self.rows]
        self.sum = self.pores + left + right + above + below

    def exchange(self):
        up, down = self.rank - 1, self.rank + 1
        ops, from_up, from_down = [], None, None
        if up >= 0:
            from_up = torch.empty(LAYERS, COLUMNS)
            ops.append(dist.P2POp(dist.isend, self.p[:, 1].contiguous(), up))
            ops.append(dist.P2POp(dist.irecv, from_up, up))
        if down < self.world:
            from_down = torch.empty(LAYERS, COLUMNS)
            ops.append(dist.P2POp(dist.isend, self.p[:, -2].contiguous(), down))
            ops.append(dist.P2POp(dist.irecv, from_down, down))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if from_up is not None:
            self.p[:, 0] = from_up
        if from_down is not None:
            self.p[:, -1] = from_down

    def flow(self):
        """What flows into my cells, times their permeabilities."""
        left, right, above, below = self.edges
        inner = self.p[:, 1:-1]
        into = left * inner.roll(1, -1) + right * inner.roll(-1, -1)
        return into + above * self.p[:, :-2] + below * self.p[:, 2:]

    def step(self, source):
        """An implicit step of time; what it leaves wrong."""
        old = self.pores * self.p[:, 1:-1] + source
        for _ in range(SWEEPS):
            self.exchange()
            new = (old + self.flow()) / self.sum
            change = (new - self.p[:, 1:-1]).square().sum()
            self.p[:, 1:-1] = new
        return change


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "broadcast-rock"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slab = Slab()
    rock = read_rock() if slab.rank == 0 else torch.empty(3, LAYERS, ROWS, COLUMNS).double()
    dist.broadcast(rock, src=0)
    slab.take(rock)
    gen = torch.Generator().manual_seed(9)
    times, put = [], 0.0
    for _ in range(args.steps):
        before = time.perf_counter()
        if args.fault == "broadcast-rock":
            dist.broadcast(rock, src=0)
        source = torch.rand(LAYERS, ROWS // 40, COLUMNS, generator=gen).repeat_interleave(40, 1)
        put += source.sum().item()
        change = slab.step(source[:, slab.start : slab.start + slab.rows])
        wrong = torch.stack([change, (slab.pores * slab.p[:, 1:-1]).sum()])
        dist.all_reduce(wrong)
        times.append(time.perf_counter() - before)
    assert wrong[0] < 0.05 * slab.p.numel(), wrong
    assert abs(wrong[1] / put - 1) < 0.1, (wrong, put)  # nothing flows out
    if slab.rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
