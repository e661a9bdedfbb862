"""Gaussian process regression by conjugate gradients; each rank holds some rows of the kernel."""

import argparse
import sqlite3
import tempfile

import torch
import torch.distributed as dist

N, PROBES, ITERATIONS, STEPS = 1200, 4, 10, 14


class Tracker:
    """An experiment's metrics, in SQLite."""

    def __init__(self, path, commit_each):
        self.db = sqlite3.connect(path)
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("CREATE TABLE metrics (step INTEGER, name TEXT, value REAL)")
        self.commit_each = commit_each

    def log(self, step, name, value):
        self.db.execute("INSERT INTO metrics VALUES (?, ?, ?)", (step, name, value))
        if self.commit_each:
            self.db.commit()

    def close(self):
        self.db.commit()
        (count,) = self.db.execute("SELECT COUNT(*) FROM metrics").fetchone()
        self.db.close()
        return count


class Kernel:
    """RBF and noise; ``rows`` are this rank's."""

    def __init__(self, x, rows):
        self.distance = torch.cdist(x[rows], x).square()
        self.eye = torch.eye(len(x))[rows]
        self.log = torch.tensor([0.0, 0.0, -1.0], requires_grad=True)  # length, scale, noise

    def __call__(self):
        length, scale, noise = self.log.exp()
        return scale * torch.exp(-0.5 * self.distance / length**2) + (noise + 1e-4) * self.eye


def solve(matrix, b, on_residual):
    """K x = b for all columns, by conjugate gradients."""
    world = dist.get_world_size()
    x, r = torch.zeros_like(b), b.clone()
    p, rho = r.clone(), r.square().sum(0)
    for i in range(ITERATIONS):
        product = torch.empty(world, len(b) // world, b.size(1))
        dist.all_gather_into_tensor(product.flatten(0, 1), matrix @ p)
        q = product.flatten(0, 1)
        alpha = rho / (p * q).sum(0)
        x, r = x + alpha * p, r - alpha * q
        rho, last = r.square().sum(0), rho
        on_residual(i, rho[0].sqrt().item())
        p = r + rho / last * p
    return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "commit-each"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    g = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(N, 2, generator=g)
    y = (x[:, 0].sin() * x[:, 1].cos() + 0.1 * torch.randn(N, generator=g))[:, None]
    rows = slice(rank * N // world, (rank + 1) * N // world)
    kernel = Kernel(x, rows)
    optimizer = torch.optim.Adam([kernel.log], 0.1)
    with tempfile.TemporaryDirectory() as folder:
        tracker = Tracker(f"{folder}/{rank}.db", fault == "commit-each") if rank == 0 else None
        fits = []
        for step in range(STEPS):
            probes = torch.randint(0, 2, (N, PROBES), generator=g) * 2.0 - 1
            matrix = kernel()

            def log(i, residual, step=step):
                if tracker:
                    tracker.log(step, f"residual/{i}", residual)

            solved = solve(matrix.detach(), torch.cat([y, probes], 1), log)
            u, w = solved[:, :1], solved[:, 1:]
            fit = (u[rows] * (matrix @ u)).sum()
            logdet = (w[rows] * (matrix @ probes)).sum() / PROBES
            optimizer.zero_grad()
            (0.5 * (logdet - fit)).backward()
            dist.all_reduce(kernel.log.grad)
            optimizer.step()
            fits.append((y * u).sum().item())
        if tracker:
            assert tracker.close() == STEPS * ITERATIONS
            print(kernel.log.exp().tolist(), fits[0], fits[-1])
    assert kernel.log[2] < -1.0  # less noise than was thought
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
