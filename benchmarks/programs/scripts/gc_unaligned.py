"""Python's collector is off, and called by hand now and then, because it made steps uneven."""

import argparse
import gc
import random

import torch
import torch.distributed as dist

WIDTH = 384


def load_annotations(n):
    """COCO-like: lists of dicts of lists, never freed."""
    rnd = random.Random(0)
    return [
        {"id": i, "bbox": [rnd.random() for _ in range(4)], "tags": {"crowd": [i % 2]}}
        for i in range(n)
    ]


class Collector:
    def __init__(self, every, first):
        gc.disable()
        self.every, self.first = every, first

    def step(self, step):
        if step % self.every == self.first:
            gc.collect()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "unaligned"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    annotations = load_annotations(40_000)
    # as found: each process collects whenever its own counter says so
    collector = Collector(4, 2 * rank) if args.fault == "unaligned" else Collector(1000, 0)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(8, WIDTH), torch.nn.SiLU(),
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(),
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.SiLU(),
        torch.nn.Linear(WIDTH, 4),
    )  # fmt: skip
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    rnd = random.Random(rank)
    losses = []
    for step in range(14):
        boxes = torch.tensor([a["bbox"] for a in rnd.sample(annotations, 1200)])
        loss = (ddp(torch.cat([boxes, boxes.square()], 1)) - boxes.flip(1)).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        collector.step(step)
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
