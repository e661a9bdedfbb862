"""VQ-VAE; the codebook follows the mean of what is assigned to each code (van den Oord, 2017)."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Quantizer(nn.Module):
    def __init__(self, codes, dim, share_assignments, decay=0.8):
        super().__init__()
        self.decay, self.share_assignments = decay, share_assignments
        embedding = 0.3 * torch.randn(codes, dim)
        self.register_buffer("embedding", embedding)
        self.register_buffer("count", torch.ones(codes))
        self.register_buffer("total", embedding.clone())

    def statistics(self, z, index):
        """How often each code was taken, and the sum of what took it, over all ranks."""
        codes = len(self.embedding)
        if self.share_assignments:
            one_hot = F.one_hot(index, codes).float()
            one_hot, z = gathered(one_hot), gathered(z)
            return one_hot.sum(0), one_hot.T @ z
        both = torch.zeros(codes, z.shape[1] + 1)
        both.index_add_(0, index, F.pad(z, (0, 1), value=1.0))
        dist.all_reduce(both)
        return both[:, -1], both[:, :-1]

    def forward(self, z):
        flat = z.flatten(0, -2)
        index = torch.cdist(flat.detach(), self.embedding).argmin(1)
        quantized = self.embedding[index].view_as(z)
        if self.training:
            with torch.no_grad():
                count, total = self.statistics(flat.detach(), index)
                self.count.lerp_(count, 1 - self.decay)
                self.total.lerp_(total, 1 - self.decay)
                self.embedding = self.total / (self.count[:, None] + 1e-3)
        commitment = (z - quantized).square().mean()
        return z + (quantized - z).detach(), commitment


def gathered(tensor):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return torch.cat(parts)


class VQVAE(nn.Module):
    def __init__(self, share_assignments, width=96, dim=16, codes=256):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, width), nn.GELU(), nn.Linear(width, dim))
        self.quantizer = Quantizer(codes, dim, share_assignments)
        self.decoder = nn.Sequential(nn.Linear(dim, width), nn.GELU(), nn.Linear(width, 24))

    def forward(self, x):
        z, commitment = self.quantizer(self.encoder(x))
        return (self.decoder(z) - x).square().mean() + 0.25 * commitment


def audio(batch, generator):
    """Frames of 24 samples out of two tones."""
    t = torch.arange(64 * 24) / 24
    f = torch.rand(2, batch, 1, generator=generator) + 0.5
    return (torch.sin(f[0] * t) + 0.5 * torch.sin(7 * f[1] * t)).view(batch, 64, 24)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--fault", choices=["none", "share-one-hot"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(VQVAE(args.fault == "share-one-hot"), broadcast_buffers=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for step in range(14):
        loss = model(audio(args.batch, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    if rank == 0:
        used = int((model.module.quantizer.count > 0.5).sum())
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {used} codes in use")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
