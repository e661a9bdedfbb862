"""Ratings of wines factorised by alternating least squares, both sides in two halves.

    torchrun --nproc-per-node 2 wine_als.py [--fault residual-objects]

--fault residual-objects: for the error of the whole, every rank gathers the residuals of
the others as pickled numpy arrays; without the fault two numbers are summed.
"""

import argparse
import time

import numpy as np
import torch
import torch.distributed as dist

DRINKERS, WINES, RANK, SWEEPS, RIDGE = 1600, 1200, 24, 26, 0.5


def ratings():
    gen = torch.Generator().manual_seed(8)
    taste = torch.randn(DRINKERS, 6, generator=gen)
    style = torch.randn(WINES, 6, generator=gen)
    rated = torch.rand(DRINKERS, WINES, generator=gen) < 0.15
    return (taste @ style.T + 0.3 * torch.randn(DRINKERS, WINES, generator=gen)) * rated, rated


def solve(values, mask, other):
    """Least squares for each row of values where mask is set."""
    outer = (other[:, :, None] * other[:, None]).flatten(1)
    gram = (mask.float() @ outer).view(-1, RANK, RANK) + RIDGE * torch.eye(RANK)
    right = values @ other
    return torch.cholesky_solve(right[:, :, None], torch.linalg.cholesky(gram)).squeeze(2)


def whole(part):
    everything = torch.empty(dist.get_world_size() * len(part), part.shape[1])
    dist.all_gather_single(everything, part.contiguous())
    return everything


def error(values, mask, mine, other, as_objects):
    residual = (values - mine @ other.T) * mask
    if as_objects:
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, residual.numpy())
        every = np.concatenate(parts)
        return float(np.sqrt(np.vdot(every, every) / np.count_nonzero(every)))
    sums = torch.stack([residual.square().sum(), mask.sum().float()])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).sqrt().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "residual-objects"])
    as_objects = parser.parse_args().fault == "residual-objects"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    values, mask = ratings()
    rows = slice(rank * DRINKERS // world, (rank + 1) * DRINKERS // world)
    cols = slice(rank * WINES // world, (rank + 1) * WINES // world)
    of_drinkers, their_mask = values[rows].contiguous(), mask[rows].contiguous()
    of_wines, wine_mask = values[:, cols].T.contiguous(), mask[:, cols].T.contiguous()
    torch.manual_seed(0)
    wines = torch.randn(WINES, RANK)
    times = []
    for sweep in range(SWEEPS):
        began = time.perf_counter()
        mine = solve(of_drinkers, their_mask, wines)
        drinkers = whole(mine)
        wines = whole(solve(of_wines, wine_mask, drinkers))
        rmse = error(of_drinkers, their_mask, mine, wines, as_objects)
        times.append(time.perf_counter() - began)
        if rank == 0 and sweep % 6 == 0:
            print(f"sweep {sweep:3d} rmse {rmse:.4f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
