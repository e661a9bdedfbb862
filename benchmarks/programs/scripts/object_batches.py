"""Rank 0 reads and tokenises; everybody gets the batch by broadcast_object_list."""

import argparse
import time
import unicodedata

import torch
import torch.distributed as dist
from torch import nn

VOCAB, LENGTH = 256, 48
LINE = "Ünïcödé is nörmalised, lower-cased, and only then cut into bytes; that takes its time. " * 2


def normalise(line):
    text = unicodedata.normalize("NFKD", line)
    return "".join(c for c in text if not unicodedata.combining(c)).lower()


class Reader:
    def __init__(self, n, clean):
        self.n, self.clean, self.at = n, clean, 0

    def batch(self):
        rows = []
        for _ in range(self.n):
            self.at += 7
            line = LINE[self.at % 60 :] + LINE
            if not self.clean:  # the cleaning that should have been done once, and beforehand
                for _ in range(14):
                    line = normalise(line)
            rows.append(list(line.encode()[: LENGTH + 1]))
        return {"tokens": torch.tensor(rows), "read_at": time.time()}


def next_batch(reader):
    box = [reader.batch() if reader else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]["tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--fault", choices=["none", "slow-tokenizer"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    reader = Reader(args.rows, args.fault == "none") if rank == 0 else None
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(VOCAB, 64), nn.Flatten(), nn.Linear(64 * LENGTH, 160), nn.GELU(),
        nn.Linear(160, VOCAB),
    )  # fmt: skip
    ddp = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    losses = []
    for _ in range(14):
        tokens = next_batch(reader)[rank::world]
        loss = nn.functional.cross_entropy(ddp(tokens[:, :-1]), tokens[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
