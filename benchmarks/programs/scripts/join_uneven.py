"""Ranks have different amounts of data, and join when theirs is used up."""

import argparse
import time

import torch
import torch.distributed as dist


def batches(rank, n, read_s):
    gen = torch.Generator().manual_seed(rank)
    for _ in range(n):
        if read_s:
            time.sleep(read_s)
        x = torch.randn(128, 320, generator=gen)
        yield x, (x[:, :160] * x[:, 160:]).sum(1, keepdim=True).sign()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=14, help="of rank 0; the next has 2 more")
    parser.add_argument("--fault", choices=["none", "slow-storage"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(320, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 1),
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    read_s = 0.010 if args.fault == "slow-storage" and rank == 0 else 0.0
    losses = []
    with model.join():
        for x, y in batches(rank, args.batches + 2 * rank, read_s):
            loss = torch.nn.functional.soft_margin_loss(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    print(f"rank {rank}: {len(losses)} batches, {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert min(losses[-3:]) < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
