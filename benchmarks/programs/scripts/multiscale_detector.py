"""Finds blobs by heatmap, on images of a new size in each step (multi-scale training)."""

import argparse
import random

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = (32, 48, 64, 80, 96)
STRIDE = 4


def conv(channels_in, channels_out, stride=1):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False),
        nn.GroupNorm(4, channels_out),
        nn.SiLU(),
    )


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(conv(1, 12, 2), conv(12, 24, 2), conv(24, 24), conv(24, 24))
        self.heatmap = nn.Conv2d(24, 1, 1)
        nn.init.constant_(self.heatmap.bias, -2.0)

    def forward(self, images):
        return self.heatmap(self.backbone(images)).squeeze(1)


class Blobs:
    """Each image has one blob; its target is the cell that it is centred on."""

    def __init__(self, seed, batch_size):
        self.generator = torch.Generator().manual_seed(seed)
        self.batch_size = batch_size

    def load(self, size):
        centre = torch.rand(self.batch_size, 2, generator=self.generator) * (size - 8) + 4
        axis = torch.arange(size)
        near = [(axis - centre[:, i, None]).square() for i in range(2)]
        images = torch.exp(-(near[0].unsqueeze(2) + near[1].unsqueeze(1)) / 8)
        images += 0.1 * torch.randn(images.shape, generator=self.generator)
        target = torch.zeros(self.batch_size, size // STRIDE, size // STRIDE)
        row, column = (centre / STRIDE).long().unbind(1)
        target[torch.arange(self.batch_size), row, column] = 1
        return images.unsqueeze(1), target


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seed", type=int, default=56)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "own-sizes"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Detector())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    blobs = Blobs(rank, args.batch_size)
    # the same seed everywhere, that all ranks have images of one size
    scale = random.Random(args.seed if args.fault == "none" else args.seed + rank)
    losses = []
    for _ in range(args.steps):
        images, target = blobs.load(scale.choice(SIZES))
        logits = model(images)
        loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=torch.tensor(10.0))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
