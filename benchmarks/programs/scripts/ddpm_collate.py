"""A denoising diffusion model of small pictures under DDP; the collate function normalises.

The pictures have been cropped and blurred beforehand, in one go. A node whose config still says
``transform: legacy`` does that to each picture again when a batch is put together.
"""

import argparse
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIZE, LEVELS = 24, 100


class Pictures(Dataset):
    """Discs of some colour, as bytes."""

    def __init__(self, count):
        gen = torch.Generator().manual_seed(3)
        at = torch.rand(count, 2, 1, 1, generator=gen) * SIZE
        grid = torch.arange(SIZE).float()
        far = (grid[:, None] - at[:, :1]) ** 2 + (grid[None] - at[:, 1:]) ** 2
        colour = torch.rand(count, 3, 1, 1, generator=gen)
        self.bytes = (255 * colour * (-far / 40).exp()).byte()

    def __len__(self):
        return len(self.bytes)

    def __getitem__(self, index):
        return self.bytes[index]


def plain_collate(pictures):
    return torch.stack(pictures).float() / 127.5 - 1


def legacy_collate(pictures):
    """Turns, shifts and smooths each picture by itself, as the augmentation once did."""
    done = []
    bell = torch.exp(-(torch.linspace(-2, 2, 9) ** 2))
    smooth = (bell[:, None] * bell / bell.sum() ** 2).expand(3, 1, 9, 9)
    for picture in pictures:
        x = F.interpolate(picture[None].float(), scale_factor=4, mode="bicubic")
        shift = (torch.rand(2) - 0.5) / 20
        turn = torch.tensor([[[1.0, 0.0, shift[0]], [0.0, 1.0, shift[1]]]])
        grid = F.affine_grid(turn, x.shape, align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        x = F.conv2d(F.pad(x, (4, 4, 4, 4), mode="reflect"), smooth, groups=3)
        done.append(F.interpolate(x, (SIZE, SIZE), mode="area")[0])
    return torch.stack(done) / 127.5 - 1


class Denoiser(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.level = nn.Embedding(LEVELS, width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, level):
        x = self.first(x) + self.level(level)[:, :, None, None]
        for conv in self.body:
            x = x + F.silu(conv(x))
        return self.last(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--fault", choices=["none", "legacy-transform"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Denoiser())
    torch.manual_seed(10 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = Pictures(args.steps * args.batch * dist.get_world_size())
    legacy = args.fault == "legacy-transform" and rank == 1
    loader = DataLoader(
        data,
        args.batch,
        sampler=DistributedSampler(data, seed=1),
        collate_fn=legacy_collate if legacy else plain_collate,
    )
    keep = torch.cos(torch.linspace(0, 1.5, LEVELS)) ** 2
    losses, times, before = [], [], time.perf_counter()
    for x in loader:
        level = torch.randint(LEVELS, (len(x),))
        noise = torch.randn_like(x)
        left = keep[level][:, None, None, None]
        found = model(left.sqrt() * x + (1 - left).sqrt() * noise, level)
        loss = F.mse_loss(found, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - before)
        before += times[-1]
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3]), losses
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
