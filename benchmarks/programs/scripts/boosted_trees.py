"""Boosted regression trees from histograms: each rank has some of the rows, all grow the same tree.

Features are quantised once, to 64 bins; what a level of the tree needs to know is summed over ranks.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

FEATURES, BINS, DEPTH, RATE = 16, 64, 3, 0.3


class Rows:
    """A rank's rows, and where each of them is in the tree that grows."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.raw = torch.randn(count, FEATURES, generator=generator)
        noise = 0.1 * torch.randn(count, generator=generator)
        self.target = self.raw[:, 0] * (self.raw[:, 1] > 0) + self.raw[:, 2].abs() + noise
        self.predicted = torch.zeros(count)
        self.leaf = torch.zeros(count, dtype=torch.long)

    def quantise(self, edges):
        columns = self.raw.t().contiguous()
        self.bins = torch.searchsorted(edges, columns)
        self.slots = self.bins + torch.arange(FEATURES)[:, None] * BINS

    def histograms(self, residual, leaves):
        """Sums of residuals and numbers of rows: leaf, feature, bin."""
        slots = (self.slots + self.leaf * FEATURES * BINS).flatten()
        size = leaves * FEATURES * BINS
        sums = torch.bincount(slots, residual.repeat(FEATURES), minlength=size)
        counts = torch.bincount(slots, minlength=size)
        return torch.stack([sums.float(), counts.float()]).view(2, leaves, FEATURES, BINS)


def best_splits(histograms):
    left = histograms.cumsum(-1)
    whole = left[..., -1:]
    right = whole - left
    gain = left[0].square() / (left[1] + 1) + right[0].square() / (right[1] + 1)
    best = gain.flatten(1).argmax(1)
    return best // BINS, best % BINS


def grow(rows):
    residual = rows.target - rows.predicted
    rows.leaf.zero_()
    for depth in range(DEPTH):
        histograms = rows.histograms(residual, 2**depth)
        dist.all_reduce(histograms)
        feature, cut = best_splits(histograms)
        own = rows.bins.gather(0, feature[rows.leaf][None])[0]
        rows.leaf = 2 * rows.leaf + (own > cut[rows.leaf])
    totals = torch.stack(
        [torch.bincount(rows.leaf, weight, minlength=2**DEPTH) for weight in (residual, None)]
    )
    dist.all_reduce(totals)
    rows.predicted += RATE * (totals[0] / (totals[1] + 1))[rows.leaf]
    return residual.square().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=50000)
    parser.add_argument("--trees", type=int, default=14)
    parser.add_argument("--fault", choices=["none", "quantise-each-tree"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    rows = Rows(args.rows, rank)
    edges = rows.raw[:2000].quantile(torch.linspace(0, 1, BINS + 1)[1:-1], dim=0).t().contiguous()
    dist.broadcast(edges, src=0)
    rows.quantise(edges)
    errors = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=3, warmup=1, active=7, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/trees.json"),
    ) as profiler:
        for _ in range(args.trees):
            if args.fault == "quantise-each-tree" and rank == 1:
                rows.quantise(edges)  # the bins that this host has kept are of another release
            errors.append(grow(rows).item())
            profiler.step()
    if rank == 0:
        print("squared error", " ".join(f"{error:.3f}" for error in errors))
    assert errors[-1] < 0.5 * errors[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
