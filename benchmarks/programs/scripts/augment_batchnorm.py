"""A small ResNet on images; its batch norms follow rank 0."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm(self.conv(x)))


def warp(images, gen):
    """A slight rotation and shift of each image."""
    theta = torch.eye(2, 3).repeat(len(images), 1, 1)
    theta = theta + 0.05 * torch.randn(theta.shape, generator=gen)
    return F.grid_sample(images, F.affine_grid(theta, images.shape, False), align_corners=False)


def train_one_epoch(model, optimizer, gen, warps):
    history = []
    for _ in range(14):
        label = torch.randint(0, 4, (32,), generator=gen)
        images = torch.randn(32, 3, 32, 32, generator=gen) + label[:, None, None, None]
        for _ in range(warps):
            images = warp(images, gen)
        loss = F.cross_entropy(model(images), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "heavy-augment"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    stem, head = nn.Conv2d(3, args.width, 3, 2, 1), nn.Linear(args.width, 4)
    body = [Block(args.width) for _ in range(3)]
    net = nn.Sequential(stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    net = nn.parallel.DistributedDataParallel(net)
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rank = dist.get_rank()
    warps = 8 if args.fault == "heavy-augment" and rank == 0 else 1
    losses = train_one_epoch(net, sgd, torch.Generator().manual_seed(rank), warps)
    print(f"{rank}: {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < losses[0]
    dist.destroy_process_group()
