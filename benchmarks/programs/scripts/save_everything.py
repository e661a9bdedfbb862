"""Rank 0 writes model and optimizer to the disk while the others go on."""

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def save(folder, step, model, optimizer):
    path = Path(folder, f"step{step}.pt.tmp")
    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    path.rename(path.with_suffix(""))
    for old in sorted(Path(folder).glob("*.pt"))[:-1]:
        old.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--fault", choices=["none", "save-often"], default="none")
    args = parser.parse_args()
    if args.fault == "save-often":
        args.save_every = 3
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.EmbeddingBag(100_000, 128), nn.ReLU(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 2)
    )
    embedding, dense = model[0], nn.parallel.DistributedDataParallel(model[1:])
    embedding.weight.requires_grad_(False)  # pretrained
    optimizer = torch.optim.Adam(dense.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(rank)
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(1, 15):
            bags = torch.randint(0, 100_000, (512, 40), generator=gen)
            vectors = embedding(bags)
            loss = nn.functional.cross_entropy(dense(vectors), (vectors[:, 0] > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if rank == 0 and step % args.save_every == 0:
                save(folder, step, model, optimizer)
    print(losses)
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
