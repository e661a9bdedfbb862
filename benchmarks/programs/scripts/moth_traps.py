"""Moths at light traps: small photographs, classified by species. One epoch is one night."""

import argparse
import hashlib
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, get_worker_info

SPECIES, SIZE = 24, 32


class Night(Dataset):
    """Pictures as the camera left them; a species is a frequency and a direction of wing stripes."""

    catalogue = None

    def __len__(self):
        return 320

    def read_catalogue(self, entries=60_000):
        """Where each picture of the season lies in the archive, by the hash of its name."""
        names = (f"trap-{n % 9}/{n:06d}.jpg" for n in range(entries))
        self.catalogue = {hashlib.md5(name.encode()).digest(): n for n, name in enumerate(names)}

    def __getitem__(self, index):
        name = f"trap-{index % 9}/{index:06d}.jpg"
        index = self.catalogue[hashlib.md5(name.encode()).digest()]
        noise = torch.Generator().manual_seed(index)
        species = index * 7 % SPECIES
        angle, waves = species % 6 * math.pi / 6, 2 + species // 6
        axis = torch.linspace(-1, 1, SIZE)
        along = axis[:, None] * math.cos(angle) + axis[None] * math.sin(angle)
        stripes = torch.sin(math.pi * waves * along).expand(3, -1, -1)
        return stripes + 0.3 * torch.randn(3, SIZE, SIZE, generator=noise), species


def open_archive(worker):
    get_worker_info().dataset.read_catalogue()


def conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, outputs),
        nn.ReLU(inplace=True),
    )


class Lit:
    """What trains the classifier, in the manner of a LightningModule without Lightning."""

    def __init__(self, fault):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(21)
        body = nn.Sequential(conv(3, 24), conv(24, 48), conv(48, 96), nn.Flatten())
        self.model = DistributedDataParallel(nn.Sequential(body, nn.Linear(96 * 16, SPECIES)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        night = Night()
        self.loader = DataLoader(
            night,
            batch_size=32,
            sampler=DistributedSampler(night, seed=5),
            num_workers=1,
            persistent_workers=fault != "new-workers",
            worker_init_fn=open_archive,
            prefetch_factor=5,
            drop_last=True,
        )
        self.losses = []

    def training_step(self, batch):
        pictures, species = batch
        loss = nn.functional.cross_entropy(self.model(pictures), species)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, epochs):
        for _ in range(epochs):
            epoch = [self.training_step(batch) for batch in self.loader]
            total = torch.stack(epoch).mean()
            dist.all_reduce(total, op=dist.ReduceOp.AVG)
            self.losses.append(total.item())
            if self.rank == 0:
                print(f"night {len(self.losses)}: loss {self.losses[-1]:.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nights", type=int, default=3)
    parser.add_argument("--fault", choices=["none", "new-workers"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    trainer = Lit(args.fault)
    trainer.fit(args.nights)
    assert trainer.losses[-1] < trainer.losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
