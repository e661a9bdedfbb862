"""DDP whose optimizer states are split between ranks (ZeRO 1)."""

import argparse
import time

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--fault", type=str, default="none", choices=["none", "periodic-stall"])
    return parser.parse_args()


def main():
    args = parse_args()
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(
        torch.nn.Sequential(
            torch.nn.Linear(100, args.hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(args.hidden, args.hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(args.hidden, 1),
        )
    )
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3
    )
    losses = []
    for step in range(14):
        torch.manual_seed(1 + step * 2 + rank)
        inputs = torch.randn(256, 100)
        targets = inputs.abs().mean(dim=1, keepdim=True)
        if args.fault == "periodic-stall" and rank == 0 and step % 3 == 0:
            time.sleep(0.12)  # e.g. a cron job of the host
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"[rank {rank}] step {step} loss {loss.item():.5f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
