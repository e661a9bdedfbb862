"""Image classification whose data may come slowly, to every rank alike."""

import argparse
import time

import torch
import torch.distributed as dist
import torch.utils.data as tud


class Shards(tud.IterableDataset):
    def __init__(self, rank, wait):
        super().__init__()
        self.rank, self.wait = rank, wait

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.rank)
        basis = torch.randn(3, 400, generator=torch.Generator().manual_seed(9))
        for _ in range(20):
            time.sleep(self.wait)
            y = torch.randint(3, (128,), generator=gen)
            yield basis[y] + 2 * torch.randn(128, 400, generator=gen), y


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--fault", choices=["none", "slow-loader"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(400, 500), torch.nn.ReLU(), torch.nn.Linear(500, 500), torch.nn.ReLU(),
        torch.nn.Linear(500, 3),
    )  # fmt: skip
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.NAdam(model.parameters(), lr=5e-4)
    data = tud.DataLoader(Shards(rank, 0.06 if args.fault == "slow-loader" else 0), batch_size=None)
    running = []
    for _ in range(args.epochs):
        for n, (images, labels) in enumerate(data):
            if n >= 14:
                break
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            running.append(loss.item())
    print(f"rank {rank}: {running[0]:.3f} -> {running[-1]:.3f}")
    assert running[-1] < running[0]
    dist.destroy_process_group()
