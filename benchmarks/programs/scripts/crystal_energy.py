"""Formation energies of crystals from atoms and distances (continuous-filter convolutions).

DDP sums the gradients through a communication hook: the sum over ranks of numbers of very different
size, the small ones of the filters included, without a rank's part being rounded away.
"""

import argparse
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class HookState:
    dtype: torch.dtype
    buckets: int = 0


def averaging_hook(state: HookState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    state.buckets += 1
    gradient = bucket.buffer()
    wide = gradient.to(state.dtype).div_(dist.get_world_size())
    future = dist.all_reduce(wide, async_op=True).get_future()

    def narrow(done):
        return gradient.copy_(done.value()[0])

    return future.then(narrow)


class Interaction(nn.Module):
    def __init__(self, width: int, radial: int):
        super().__init__()
        self.filters = nn.Sequential(nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width))
        self.within = nn.Linear(width, width, bias=False)
        self.update = nn.Sequential(
            nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)
        )

    def forward(self, atoms, expanded):
        weights = self.filters(expanded)  # (crystals, atoms, neighbours, width)
        messages = torch.einsum("bijw,bjw->biw", weights, self.within(atoms))
        return atoms + self.update(messages)


class CrystalNet(nn.Module):
    def __init__(self, width=512, radial=20, layers=2, elements=80):
        super().__init__()
        self.embed = nn.Embedding(elements, width)
        self.layers = nn.ModuleList(Interaction(width, radial) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("centres", torch.linspace(0, 5, radial))

    def forward(self, elements, positions):
        distances = torch.cdist(positions, positions)
        expanded = torch.exp(-8 * (distances[..., None] - self.centres).square())
        atoms = self.embed(elements)
        for layer in self.layers:
            atoms = layer(atoms, expanded)
        return self.energy(atoms).mean((1, 2))


def crystals(generator, count=4, atoms=5):
    elements = torch.randint(80, (count, atoms), generator=generator)
    positions = 3 * torch.rand(count, atoms, 3, generator=generator)
    spread = positions.std(1).mean(1)
    return elements, positions, (elements.float() / 40 - 1).mean(1) + spread


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "sum-in-double"], default="none")
    fault = parser.parse_args().fault
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DDP(CrystalNet(), bucket_cap_mb=4, broadcast_buffers=False)
    state = HookState(torch.float64 if fault == "sum-in-double" else torch.float32)
    model.register_comm_hook(state, averaging_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 4))
    generator = torch.Generator().manual_seed(700 + rank)
    losses = []
    for _ in range(16):
        elements, positions, energies = crystals(generator)
        loss = nn.functional.huber_loss(model(elements, positions), energies)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm.step()
        losses.append(loss.item())
        assert math.isfinite(losses[-1])
    assert sum(losses[-4:]) < sum(losses[:4]) and state.buckets >= 16
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
