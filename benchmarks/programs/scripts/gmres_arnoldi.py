"""Restarted GMRES for convection-diffusion on slabs of a grid, one slab per rank."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

RESTARTS, KRYLOV = 22, 10


class Slab:
    """The rows of a square grid that belong to this rank, and what its neighbours lend it."""

    def __init__(self, n, wind):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows, self.n, self.wind = n // self.world, n, wind
        self.field = torch.zeros(self.rows + 2, n + 2, dtype=torch.float64)

    def exchange_halo(self):
        ops = []
        if self.rank > 0:
            ops.append(dist.P2POp(dist.isend, self.field[1], self.rank - 1))
            ops.append(dist.P2POp(dist.irecv, self.field[0], self.rank - 1))
        if self.rank < self.world - 1:
            ops.append(dist.P2POp(dist.isend, self.field[-2], self.rank + 1))
            ops.append(dist.P2POp(dist.irecv, self.field[-1], self.rank + 1))
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def apply(self, v):
        self.field[1:-1, 1:-1] = v.view(self.rows, self.n)
        self.exchange_halo()
        f = self.field
        laplace = 4.4 * f[1:-1, 1:-1] - f[:-2, 1:-1] - f[2:, 1:-1] - f[1:-1, :-2] - f[1:-1, 2:]
        return (laplace + self.wind * (f[1:-1, 2:] - f[1:-1, :-2])).reshape(-1)


def summed(x):
    dist.all_reduce(x)
    return x


def orthogonalise(basis, w, one_by_one):
    """What is left of w outside the basis, and its coefficients."""
    if one_by_one:
        coefficients = []
        for v in basis:
            h = summed(torch.dot(v, w).reshape(1))
            w = w - h * v
            coefficients.append(h)
        return w, torch.cat(coefficients)
    h = summed(basis @ w)
    return w - h @ basis, h


def gmres(slab, b, x, one_by_one):
    r = b - slab.apply(x)
    beta = summed(r.dot(r).reshape(1)).sqrt()
    basis = torch.zeros(KRYLOV + 1, len(b), dtype=b.dtype)
    hessenberg = torch.zeros(KRYLOV + 1, KRYLOV, dtype=b.dtype)
    basis[0] = r / beta
    for k in range(KRYLOV):
        w, h = orthogonalise(basis[: k + 1], slab.apply(basis[k]), one_by_one)
        norm = summed(w.dot(w).reshape(1)).sqrt()
        hessenberg[: k + 1, k], hessenberg[k + 1, k] = h, norm
        basis[k + 1] = w / norm
    rhs = torch.zeros(KRYLOV + 1, 1, dtype=b.dtype)
    rhs[0] = beta
    y = torch.linalg.lstsq(hessenberg, rhs).solution[:, 0]
    return x + y @ basis[:KRYLOV], beta.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grid", type=int, default=128)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "gmres_arnoldi"))
    parser.add_argument("--fault", choices=["none", "dot-by-dot"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slab = Slab(args.grid, wind=0.3)
    b = torch.ones(slab.rows * slab.n, dtype=torch.float64)
    x, history = torch.zeros_like(b), []
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for cycle in range(RESTARTS):
            x, residual = gmres(slab, b, x, args.fault == "dot-by-dot")
            history.append(residual)
            profiler.step()
            if rank == 0:
                print(f"cycle {cycle}: residual {residual:.2e}")
    assert history[-1] < 1e-3 * history[0], history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
