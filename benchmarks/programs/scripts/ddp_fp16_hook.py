"""Convolutions under DDP; gradients are compressed to fp16 on the wire."""

import argparse
import logging
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

log = logging.getLogger("train")


def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 2),
    )


class Stripes(torch.utils.data.Dataset):
    """Are the stripes horizontal or vertical?"""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        wave = torch.sin(torch.arange(20) * 1.3 + torch.rand(1, generator=gen) * 6)
        image = wave.expand(20, 20)
        image = image if index % 2 else image.T
        return image[None] + 0.1 * torch.randn(1, 20, 20, generator=gen), index % 2


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--max-steps", type=int, default=14)
    cli.add_argument("--fault", choices=("none", "stall-once"), default="none")
    opt = cli.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(build())
    model.register_comm_hook(None, fp16_compress_hook)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sampler = torch.utils.data.DistributedSampler(Stripes(), seed=5)
    loader = torch.utils.data.DataLoader(Stripes(), batch_size=32, sampler=sampler)
    first = last = None
    for step, (image, label) in enumerate(loader):
        if step >= opt.max_steps:
            break
        if opt.fault == "stall-once" and rank == 1 and step == 6:
            time.sleep(0.3)  # an NFS server that takes its time
        loss = nn.functional.cross_entropy(model(image), label)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        last = loss.item()
        first = first or last
        if rank == 0:
            log.info("step=%d loss=%.4f", step, last)
    assert last < first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
