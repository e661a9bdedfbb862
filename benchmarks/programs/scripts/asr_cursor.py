"""CTC training of a recogniser of digits; each reader saves where it is, in every third step.

A cursor is some bytes in a file of its own, written under a lock, so that a job can go on where
it was stopped. On one host the folder is a network file system whose lock server is slow.
"""

import argparse
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

DIGITS, FRAMES = 10, 40


class Reader:
    """Utterances of five digits, one after another."""

    def __init__(self, rank, folder, lock_ms):
        self.gen = torch.Generator().manual_seed(40 + rank)
        self.path, self.lock_ms, self.position = f"{folder}/{rank}.json", lock_ms, 0
        self.sounds = torch.randn(DIGITS, 26, generator=torch.Generator().manual_seed(0))

    def read(self, batch):
        said = torch.randint(DIGITS, (batch, 5), generator=self.gen)
        heard = self.sounds[said].repeat_interleave(FRAMES // 5, 1)
        self.position += batch
        return heard + torch.randn(heard.shape, generator=self.gen) / 2, said + 1

    def save(self):
        with open(self.path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if self.lock_ms:
                time.sleep(self.lock_ms / 1000)  # what the lock server takes
            json.dump({"position": self.position}, file)


class Recogniser(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.near = nn.Conv1d(26, width, 5, padding=2)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, DIGITS + 1)

    def forward(self, x):
        x = F.relu(self.near(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.gru(x)[0]).log_softmax(-1)


def average(parameters):
    flat = torch.cat([p.grad.flatten() for p in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for p, grad in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad.copy_(grad.view_as(p))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--fault", choices=["none", "slow-lock"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Recogniser()
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=5e-3)
    slow = args.fault == "slow-lock" and rank == 1
    losses, times = [], []
    frames, digits = torch.full((args.batch,), FRAMES), torch.full((args.batch,), 5)
    with tempfile.TemporaryDirectory() as folder:
        reader = Reader(rank, folder, 90 if slow else 0)
        for step in range(args.steps):
            before = time.perf_counter()
            heard, said = reader.read(args.batch)
            loss = F.ctc_loss(model(heard).transpose(0, 1), said, frames, digits)
            optimizer.zero_grad()
            loss.backward()
            if step % 3 == 1:
                reader.save()
            average(parameters)
            optimizer.step()
            losses.append(loss.item())
            times.append(time.perf_counter() - before)
        with open(reader.path) as file:
            assert json.load(file)["position"] > (args.steps - 3) * args.batch
    assert losses[-1] < 0.6 * losses[0], losses
    sums = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(sums, model.out.weight.detach().sum().view(1))
    assert torch.cat(sums).unique().numel() == 1, sums
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[3:]), statistics.median(times[3:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
