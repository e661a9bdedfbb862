"""Click-through on raw log lines: features are parsed in the training loop."""

import argparse
import json
import zlib

import torch
import torch.distributed as dist
from torch import nn

FIELDS, BUCKETS = 12, 5000


def log_lines(rank, n, nested):
    gen = torch.Generator().manual_seed(rank)
    while True:
        rows = torch.randint(0, 400, (n, FIELDS), generator=gen).tolist()
        if nested:  # since the new exporter everything is JSON in JSON
            yield [json.dumps({"v": [json.dumps({"f": i, "x": str(v)}) for i, v in enumerate(r)]})
                   for r in rows]  # fmt: skip
        else:
            yield ["\t".join(map(str, row)) for row in rows]


def hashed(field, value):
    return zlib.crc32(f"{field}={value}".encode()) % BUCKETS


def parse(line):
    if line.startswith("{"):
        inner = [json.loads(each) for each in json.loads(line)["v"]]
        return [hashed(each["f"], each["x"]) for each in inner]
    return [hashed(i, value) for i, value in enumerate(line.split("\t"))]


def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--batch", type=int, default=700)
    cli.add_argument("--fault", choices=["none", "nested-json"], default="none")
    args = cli.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    lines = log_lines(rank, args.batch, nested=args.fault == "nested-json" and rank == 1)
    torch.manual_seed(0)
    wide = nn.EmbeddingBag(BUCKETS, 128, mode="mean")
    deep = nn.Sequential(nn.Linear(128, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(),
                         nn.Linear(768, 1))  # fmt: skip
    net = nn.parallel.DistributedDataParallel(nn.Sequential(wide, deep))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
    losses = []
    for _ in range(14):
        ids = torch.tensor([parse(line) for line in next(lines)])
        clicked = (ids[:, :1] % 2).float()
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids), clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    print(losses)
    assert min(losses[-3:]) < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
