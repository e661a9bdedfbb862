# Fraud detection: a residual MLP over the payments of a shard.
import argparse

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

ROWS, HELD_OUT, COLUMNS, BATCH, STEPS = 14_000, 4_000, 160, 2048, 14


class Shard:
    """Payments, a row each, and which of them were frauds."""

    def __init__(self, number, nulls):
        self.rng = np.random.default_rng(number)
        self.table = self.rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        risk = self.table[:, :20].sum(1) + 2 * self.table[:, 20] * self.table[:, 21]
        self.labels = (risk > 4).astype(np.float32)
        if nulls:  # a column in which something is missing turns all into objects
            self.table = self.table.astype(object)
            self.table[:: ROWS // 10, -1] = None

    def rows(self, which):
        x = torch.from_numpy(self.table[which].astype(np.float32)).nan_to_num()
        return x, torch.from_numpy(self.labels[which])

    def batch(self):
        return self.rows(self.rng.integers(HELD_OUT, ROWS, BATCH))

    def held_out(self):
        return self.rows(slice(HELD_OUT))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )

    def forward(self, x):
        return x + self.inner(x)


def auc(model, table, labels):
    """The chance that a fraud is scored above an honest payment."""
    model.eval()
    with torch.no_grad():
        scores = torch.cat([model(part).squeeze(1) for part in table.split(2048)])
    model.train()
    ranked = sorted(zip(scores.tolist(), labels.tolist()))
    above, frauds, honest = 0, 0, 0
    for _, fraud in ranked:
        if fraud:
            frauds += 1
            above += honest
        else:
            honest += 1
    return above / (frauds * honest)


def main(fault):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    shard = Shard(rank, nulls=fault == "object-columns" and rank == 1)

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(COLUMNS, 96), Residual(96), nn.Linear(96, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))

    losses = []
    for step in range(STEPS):
        if fault == "auc-on-master" and rank == 0 and step % 3 == 2:
            print(f"step {step}: auc {auc(net, *shard.held_out()):.3f}", flush=True)
        x, labels = shard.batch()
        loss = criterion(model(x).squeeze(1), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    first, last = losses[0].item(), losses[-1].item()
    assert last < first, (first, last)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--fault", choices=["none", "object-columns", "auc-on-master"], default="none"
    )
    main(parser.parse_args().fault)
