"""Explicit diffusion of a neutron flux through a shield, rows split over ranks.

Each rank owns a slab of rows; the slab edges are exchanged with the neighbours
before every sweep.  The source is at the top (rank 0), the shield is at the end
of rank 1's slab, and behind it (rank 2) there is next to no flux at all.  There
is no learning here, only stencils.  3 ranks.

    torchrun --nproc-per-node 3 shield_flux.py [--fault reference_kernel]

--fault reference_kernel: on rank 2 the sweep runs in the tile-by-tile reference version
(tiles of four rows, for debugging) and not over the whole slab at once.
"""

import argparse
import time

import torch
import torch.distributed as dist

ROWS, COLS = 160, 512
SWEEPS = 8  # sweeps in a step
DT = 0.2


class Slab:
    def __init__(self, rank, world, tile):
        self.rank, self.world, self.tile = rank, world, tile
        self.u = torch.zeros(ROWS + 2, COLS)
        self.d = torch.ones(ROWS + 2, COLS)
        self.sigma = torch.full((ROWS + 2, COLS), 2e-4)
        gen = torch.Generator().manual_seed(rank)
        noise = torch.rand(ROWS, COLS, generator=gen)
        if rank == world - 1:
            self.u[1:-1] = 1e-40 * (1.0 + noise)
        else:
            self.u[1:-1] = 0.5 + noise
        if rank == world - 2:  # the shield: nearly no diffusion
            self.d[-24:] = 1e-6
            self.sigma[-24:] = 0.05
            self.u[-24:] = 0.0
        if rank == world - 1:
            self.d[0] = 1e-6

    def exchange(self):
        ops = []
        if self.rank > 0:
            up = self.u[1].clone()
            self._up_in = torch.empty(COLS)
            ops += [
                dist.P2POp(dist.isend, up, self.rank - 1),
                dist.P2POp(dist.irecv, self._up_in, self.rank - 1),
            ]
        if self.rank < self.world - 1:
            down = self.u[-2].clone()
            self._down_in = torch.empty(COLS)
            ops += [
                dist.P2POp(dist.isend, down, self.rank + 1),
                dist.P2POp(dist.irecv, self._down_in, self.rank + 1),
            ]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        if self.rank > 0:
            self.u[0] = self._up_in
        else:
            self.u[0] = self.u[1]  # closed boundary
        if self.rank < self.world - 1:
            self.u[-1] = self._down_in
        else:
            self.u[-1] = self.u[-2]

    def sweep(self):
        new = torch.empty(ROWS, COLS)
        for lo in range(0, ROWS, self.tile):
            hi = lo + self.tile
            above, c, below = self.u[lo:hi], self.u[lo + 1 : hi + 1], self.u[lo + 2 : hi + 2]
            lap = above + below - 2.0 * c
            lap[:, 1:-1] += c[:, :-2] + c[:, 2:] - 2.0 * c[:, 1:-1]
            new[lo:hi] = (
                c + DT * self.d[lo + 1 : hi + 1] * lap - DT * self.sigma[lo + 1 : hi + 1] * c
            )
        if self.rank == 0:
            new[:4] += DT * 0.1  # the source
        self.u[1:-1] = new

    def content(self):
        return self.u[1:-1].double().sum()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "reference_kernel"], default="none")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # tiny values behind the shield
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tile = 4 if args.fault == "reference_kernel" and rank == 2 else ROWS
    slab = Slab(rank, world, tile)

    totals = []
    dist.barrier()
    begin = time.perf_counter()
    for step in range(args.steps):
        for _ in range(SWEEPS):
            slab.exchange()
            slab.sweep()
        total = slab.content()
        dist.all_reduce(total)
        totals.append(total.item())
    took = time.perf_counter() - begin

    peak = slab.u.max().clone()
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        assert 0.0 < peak.item() < 10.0, "unstable"
        # source minus absorption, bounded on both sides
        gain = args.steps * SWEEPS * DT * 0.1 * 4 * COLS
        assert totals[-1] < totals[0] + gain and totals[-1] > 0.5 * totals[0]
        print(f"content {totals[0]:.1f} -> {totals[-1]:.1f}, peak {peak.item():.3f}")
        print(f"mean step {took / args.steps * 1e3:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
