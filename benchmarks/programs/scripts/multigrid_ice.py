"""Pressure in a drifting ice sheet: a two-grid Poisson solver on row slabs.

Smoothing runs on all ranks with halo rows exchanged between neighbours; the
coarse problem is gathered on rank 0, solved there and broadcast.

    torchrun --nproc-per-node 3 multigrid_ice.py [--fault gauss-seidel]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "gauss-seidel"])
FAULT = parser.parse_args().fault
ROWS, COLS = 192, 512  # rows on each rank
RATIO = 32
SMOOTH = 6
CYCLES = 90


def exchange(x, rank, world):
    """Halo rows of the neighbours above and below, zero at the border."""
    above, below = torch.zeros(1, x.shape[1]), torch.zeros(1, x.shape[1])
    ops = []
    if rank > 0:
        ops += [
            dist.P2POp(dist.isend, x[:1].contiguous(), rank - 1),
            dist.P2POp(dist.irecv, above, rank - 1),
        ]
    if rank < world - 1:
        ops += [
            dist.P2POp(dist.isend, x[-1:].contiguous(), rank + 1),
            dist.P2POp(dist.irecv, below, rank + 1),
        ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return F.pad(torch.cat([above, x, below]), (1, 1))


def neighbours(p):
    return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]


def coarse_matrix(n, m):
    one = lambda k: (
        2 * torch.eye(k) - torch.diag(torch.ones(k - 1), 1) - torch.diag(torch.ones(k - 1), -1)
    )
    return torch.kron(one(n), torch.eye(m)) + torch.kron(torch.eye(n), one(m))


class Factored:
    def __init__(self, n, m):
        self.chol = torch.linalg.cholesky(coarse_matrix(n, m))

    def __call__(self, rhs):
        return torch.cholesky_solve(rhs.reshape(-1, 1), self.chol).view(rhs.shape)


class GaussSeidel:
    def __init__(self, n, m, sweeps=300):
        self.n, self.m, self.sweeps = n, m, sweeps

    def __call__(self, rhs):
        b = rhs.tolist()
        u = [[0.0] * (self.m + 2) for _ in range(self.n + 2)]
        for _ in range(self.sweeps):
            for i in range(1, self.n + 1):
                row, up, down, f = u[i], u[i - 1], u[i + 1], b[i - 1]
                for j in range(1, self.m + 1):
                    row[j] = 0.25 * (f[j - 1] + up[j] + down[j] + row[j - 1] + row[j + 1])
        return torch.tensor(u)[1:-1, 1:-1].contiguous()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(rank)
    n, m = world * ROWS // RATIO, COLS // RATIO
    solve = None
    if rank == 0:
        solve = (GaussSeidel if FAULT == "gauss-seidel" else Factored)(n, m)
    p = torch.zeros(ROWS, COLS)
    wind = F.interpolate(
        torch.randn(1, 1, 6, 16, generator=gen), size=(ROWS, COLS), mode="bilinear"
    )[0, 0]
    took = []
    for cycle in range(CYCLES):
        start = time.perf_counter()
        rhs = wind * (1 + 0.1 * torch.sin(torch.tensor(cycle / 10)))
        for _ in range(SMOOTH):
            p = 0.2 * p + 0.8 * 0.25 * (rhs + neighbours(exchange(p, rank, world)))
        residual = rhs + neighbours(exchange(p, rank, world)) - 4 * p
        coarse = F.avg_pool2d(residual[None, None], RATIO)[0, 0].contiguous()
        parts = [torch.empty_like(coarse) for _ in range(world)] if rank == 0 else None
        dist.gather(coarse, parts, dst=0)
        correction = solve(torch.cat(parts) * RATIO**2) if rank == 0 else torch.empty(n, m)
        dist.broadcast(correction, src=0)
        mine = correction[rank * ROWS // RATIO : (rank + 1) * ROWS // RATIO]
        e = F.interpolate(mine[None, None], size=(ROWS, COLS), mode="bilinear")[0, 0]
        ae = 4 * e - neighbours(exchange(e, rank, world))
        sums = torch.stack([(residual * e).sum(), (e * ae).sum(), residual.pow(2).sum()])
        dist.all_reduce(sums)
        p = p + sums[0] / sums[1] * e
        took.append(time.perf_counter() - start)
        if rank == 0 and cycle % 20 == 0:
            print(f"cycle {cycle:3d}  residual {sums[2].sqrt().item():.3f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
