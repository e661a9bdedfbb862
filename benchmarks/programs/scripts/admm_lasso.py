"""Consensus ADMM for the lasso: each rank has rows of its own, all agree on the coefficients.

After Boyd et al. (2011), section 8.2.1. There is no gradient and no optimizer: each rank solves a
ridge regression by its factored matrix, the mean of the solutions is thresholded.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.profiler import ProfilerActivity, profile, schedule


def mean_by_reduce(tensor):
    return funcol.all_reduce(tensor, "sum", dist.group.WORLD) / dist.get_world_size()


def mean_by_gather(tensor):
    everybody = funcol.all_gather_tensor(tensor[None], 0, dist.group.WORLD)
    return everybody.mean(0)


def shrink(values, threshold):
    return values.sign() * (values.abs() - threshold).clamp_min(0)


class RidgeWorker:
    """argmin |Ax - b|^2 / 2 + rho |x - v|^2 / 2, for many right-hand sides, by Woodbury."""

    def __init__(self, features, targets, rho):
        self.features, self.rho = features, rho
        self.projected = features.T @ targets
        gram = torch.eye(len(features)) + features @ features.T / rho
        self.factor = torch.linalg.cholesky(gram)

    def solve(self, centre):
        q = self.projected + self.rho * centre
        inner = torch.cholesky_solve(self.features @ q, self.factor)
        return q / self.rho - self.features.T @ inner / self.rho**2


class Consensus:
    def __init__(self, worker, shape, penalty, mean):
        self.worker, self.penalty, self.mean = worker, penalty, mean
        self.z, self.u = torch.zeros(shape), torch.zeros(shape)

    def iterate(self):
        x = self.worker.solve(self.z - self.u)
        relaxed = 1.6 * x - 0.6 * self.z
        average = self.mean(relaxed + self.u)
        threshold = self.penalty / (self.worker.rho * dist.get_world_size())
        previous, self.z = self.z, shrink(average, threshold)
        self.u = self.u + relaxed - self.z
        return (self.z - previous).norm()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=int, default=40_000)
    parser.add_argument("--targets", type=int, default=32)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--fault", choices=["none", "gather-then-mean"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(args.features, args.targets, generator=generator)
    truth *= torch.rand(args.features, 1, generator=generator) < 0.002
    generator.manual_seed(1 + dist.get_rank())
    rows = torch.randn(args.rows, args.features, generator=generator)
    worker = RidgeWorker(rows, rows @ truth, rho=2000.0)
    mean = mean_by_gather if args.fault == "gather-then-mean" else mean_by_reduce
    consensus = Consensus(worker, truth.shape, penalty=3.0, mean=mean)
    moved = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/admm.json"),
    ) as profiler:
        for _ in range(16):
            moved.append(consensus.iterate().item())
            profiler.step()
    assert moved[-1] < moved[0] / 2, moved
    same = funcol.all_reduce(consensus.z, "max", dist.group.WORLD)
    assert torch.equal(same, consensus.z)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
