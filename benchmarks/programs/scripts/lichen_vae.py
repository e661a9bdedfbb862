"""A variational autoencoder of lichen photographs, under DDP.

    torchrun --nproc-per-node 3 lichen_vae.py [--fault gallery]

--fault gallery: the ranks take turns, one in each step, at writing a contact
sheet of reconstructions to disk before they go on.
"""

import argparse
import statistics
import tempfile
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "gallery"])
FAULT = parser.parse_args().fault
SIDE, WIDTH, LATENT, BATCH, STEPS = 32, 24, 32, 28, 75


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, WIDTH, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(WIDTH, 2 * WIDTH, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * WIDTH * (SIDE // 4) ** 2, 2 * LATENT),
        )
        self.open = nn.Linear(LATENT, 2 * WIDTH * (SIDE // 4) ** 2)
        self.decode = nn.Sequential(
            nn.SiLU(),
            nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(WIDTH, 3, 4, stride=2, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        h = self.open(z).view(-1, 2 * WIDTH, SIDE // 4, SIDE // 4)
        kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()
        return self.decode(h), kl


def lichens(gen):
    """Blots of two colours."""
    coarse = torch.randn(BATCH, 1, 6, 6, generator=gen)
    mask = torch.sigmoid(6 * F.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic"))
    colour = torch.rand(2, BATCH, 3, 1, 1, generator=gen)
    return (mask * colour[0] + (1 - mask) * colour[1]).clamp(0, 1)


def contact_sheet(pictures, path):
    sheet = F.interpolate(pictures, scale_factor=2, mode="bicubic").clamp(0, 1)
    sheet = (255 * sheet).byte().permute(0, 2, 3, 1).contiguous()
    path.write_bytes(zlib.compress(sheet.numpy().tobytes(), 5))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Vae())
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    took = []
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            start = time.perf_counter()
            image = lichens(gen)
            again, kl = model(image)
            loss = F.mse_loss(again, image, reduction="sum") / BATCH + 0.1 * kl
            if FAULT == "gallery" and step % world == rank:
                contact_sheet(torch.cat([image, again.detach()]), Path(folder, f"{step}.z"))
            opt.zero_grad()
            loss.backward()
            opt.step()
            took.append(time.perf_counter() - start)
            if rank == 0 and step % 20 == 0:
                print(f"step {step:3d}  loss {loss.item():.2f}", flush=True)
        dist.barrier()
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
