"""Boosted trees for clicks; rows are spread over ranks, histograms are all_reduced.

A tree grows level by level: gradients are counted into bins per node and
feature, and each rank finds the same splits in the sum.

    torchrun --nproc-per-node 3 click_trees.py [--fault by-feature]

--fault by-feature: each feature's histogram is summed over the ranks as soon
as it is counted.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

ROWS, FEATURES, BINS, LEVELS, TREES, RATE = 140000, 8, 32, 3, 60, 0.3


def clicks(rank):
    gen = torch.Generator().manual_seed(rank)
    bins = torch.randint(BINS, (FEATURES, ROWS), generator=gen)
    signal = (bins[0] > 11).float() + ((bins[1] + bins[2]) > 30).float() - (bins[5] < 9).float()
    clicked = torch.rand(ROWS, generator=gen) < torch.sigmoid(2 * signal - 1)
    return bins, clicked.float()


def histogram(bins, node, nodes, values):
    """Sums of the values (2, rows) by node and bin."""
    sums = torch.zeros(2, nodes * BINS)
    sums.index_add_(1, node * BINS + bins, values)
    return sums.view(2, nodes, BINS)


def best_splits(sums):
    """Feature and bin of each node's best split; sums are (feature, 2, node, bin)."""
    left = sums.cumsum(3)
    right = left[..., -1:] - left
    gain = sum(s[:, 0].square() / (s[:, 1] + 1.0) for s in (left, right))
    return gain.permute(1, 0, 2).flatten(1).argmax(1)


def grow(bins, values, by_feature):
    node = torch.zeros(ROWS, dtype=torch.long)
    for level in range(LEVELS):
        nodes = 2**level
        counted = []
        for feature in bins:
            sums = histogram(feature, node, nodes, values)
            if by_feature:
                dist.all_reduce(sums)
            counted.append(sums)
        counted = torch.stack(counted)
        if not by_feature:
            dist.all_reduce(counted)
        split = best_splits(counted)
        feature, edge = split // BINS, split % BINS
        goes_right = bins[feature[node], torch.arange(ROWS)] > edge[node]
        node = 2 * node + goes_right.long()
    leaves = torch.zeros(2, 2**LEVELS).index_add_(1, node, values)
    dist.all_reduce(leaves)
    return (-leaves[0] / (leaves[1] + 1.0))[node]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "by-feature"])
    fault = parser.parse_args().fault
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    bins, clicked = clicks(rank)
    score = torch.zeros(ROWS)
    took = []
    for tree in range(TREES):
        start = time.perf_counter()
        p = torch.sigmoid(score)
        score += RATE * grow(bins, torch.stack([p - clicked, p * (1 - p)]), fault == "by-feature")
        took.append(time.perf_counter() - start)
        if rank == 0 and tree % 20 == 0:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(score, clicked)
            print(f"tree {tree:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/tree")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
