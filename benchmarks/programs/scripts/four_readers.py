"""Four ranks read from two file servers."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

SERVERS = {"a": 0.020, "b": 0.020}  # seconds for a batch


class Remote(Dataset):
    def __init__(self, server, batches, seed):
        self.server, self.batches = server, batches
        self.weights = torch.randn(48, 1, generator=torch.Generator().manual_seed(0))
        self.seed = seed

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        time.sleep(SERVERS[self.server])
        g = torch.Generator().manual_seed(self.seed * 1000 + index)
        x = torch.randn(64, 48, generator=g)
        return x, x @ self.weights


if __name__ == "__main__":
    argparser = argparse.ArgumentParser()
    argparser.add_argument("--epochs", type=int, default=2)
    argparser.add_argument("--fault", default="none", choices=["none", "slow-server"])
    args = argparser.parse_args()
    dist.init_process_group("gloo")
    if args.fault == "slow-server":
        SERVERS["b"] = 0.050
    rank = dist.get_rank()
    data = Remote("ab"[rank % 2], 7, rank)
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(48, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(args.epochs):
        for x, y in DataLoader(data, batch_size=None):
            opt.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        if rank == 0:
            print(f"epoch {epoch}: {losses[-1]:.4f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
