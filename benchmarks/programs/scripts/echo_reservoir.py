"""A reservoir of leaky filters, in the precision of its signal; an MLP classifies their echo."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

UNITS, LENGTH, CLASSES = 512, 240, 4


class Reservoir(nn.Module):
    """Nothing here is learned."""

    def __init__(self):
        super().__init__()
        gen = torch.Generator().manual_seed(5)
        self.register_buffer("leak", torch.linspace(0.6, 0.95, UNITS))
        self.register_buffer("gain", torch.randn(UNITS, generator=gen))

    @torch.no_grad()
    def forward(self, signal):
        leak, gain = self.leak.to(signal.dtype), self.gain.to(signal.dtype)
        state = signal.new_zeros(len(signal), UNITS)
        total = torch.zeros_like(state)
        for value in signal.unbind(1):
            state = state * leak + value[:, None] * gain
            total += state
        return total.float()


def pulses(n, generator):
    """One pulse of some shape at the beginning, then silence."""
    label = torch.randint(0, CLASSES, (n,), generator=generator)
    signal = torch.zeros(n, LENGTH)
    for k in range(12):
        signal[:, k] = torch.cos(0.4 * (label + 1) * k)
    signal[:, :12] += 0.1 * torch.randn(n, 12, generator=generator)
    return signal, label


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=192)
    parser.add_argument("--fault", choices=["none", "double"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # rank 1's recordings went through numpy, which made doubles of them
    dtype = torch.float64 if args.fault == "double" and rank == 1 else torch.float32
    torch.manual_seed(0)
    reservoir = Reservoir()
    head = nn.Sequential(
        nn.BatchNorm1d(UNITS), nn.Linear(UNITS, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(),
        nn.Linear(1024, CLASSES),
    )  # fmt: skip
    ddp = DistributedDataParallel(head)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(22):
        signal, label = pulses(args.batch, generator)
        loss = nn.functional.cross_entropy(ddp(reservoir(signal.to(dtype))), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
