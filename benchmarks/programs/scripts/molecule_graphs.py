"""Solubility of molecules by message passing, under DDP.

Each rank holds all its molecules as Python objects, as the chemists' library
hands them out, and collates batches of them as it goes.

    torchrun --nproc-per-node 3 molecule_graphs.py [--fault staggered-gc]

Python's own collection is off, as it stops training at moments of its own.

--fault staggered-gc: memory grew, so that garbage is collected by hand; in
each step by another rank, in order not to stop all of them at once.
"""

import argparse
import gc
import random
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ELEMENTS, DIM, ROUNDS = 12, 88, 3


class Atom:
    def __init__(self, element, charge):
        self.element = element
        self.charge = charge
        self.bonds = []


class Molecule:
    def __init__(self, rng):
        self.atoms = [Atom(rng.randrange(ELEMENTS), rng.gauss(0, 1)) for _ in range(22)]
        for number, atom in enumerate(self.atoms[1:], start=1):
            other = rng.randrange(number)
            atom.bonds.append(other)
            self.atoms[other].bonds.append(number)
        self.solubility = sum(a.charge * len(a.bonds) for a in self.atoms) / 22


def collate(molecules):
    elements, charges, source, target, owner = [], [], [], [], []
    for number, molecule in enumerate(molecules):
        offset = len(elements)
        for at, atom in enumerate(molecule.atoms):
            elements.append(atom.element)
            charges.append(atom.charge)
            owner.append(number)
            source.extend(offset + b for b in atom.bonds)
            target.extend([offset + at] * len(atom.bonds))
    truth = torch.tensor([m.solubility for m in molecules])
    graph = [torch.tensor(t) for t in (elements, charges, source, target, owner)]
    return graph, truth


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, DIM)
        self.charge = nn.Linear(1, DIM)
        self.message = nn.ModuleList(nn.Linear(2 * DIM, DIM) for _ in range(ROUNDS))
        self.update = nn.ModuleList(nn.GRUCell(DIM, DIM) for _ in range(ROUNDS))
        self.readout = nn.Sequential(nn.Linear(DIM, DIM), nn.SiLU(), nn.Linear(DIM, 1))

    def forward(self, elements, charges, source, target, owner, molecules):
        h = self.embed(elements) + self.charge(charges[:, None])
        for message, update in zip(self.message, self.update):
            m = torch.relu(message(torch.cat([h[source], h[target]], 1)))
            h = update(torch.zeros_like(h).index_add_(0, target, m), h)
        per_atom = self.readout(h).squeeze(1)
        return torch.zeros(molecules).index_add_(0, owner, per_atom) / 22


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "staggered-gc"])
    parser.add_argument("--molecules", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=75)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DistributedDataParallel(Net())
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=args.steps)
    gc.disable()
    gc.collect()
    gc.freeze()  # what was imported stays
    rng = random.Random(rank)
    molecules = [Molecule(rng) for _ in range(args.molecules)]
    times = []
    for step in range(args.steps):
        start = time.perf_counter()
        graph, truth = collate(rng.sample(molecules, args.batch))
        loss = nn.functional.smooth_l1_loss(net(*graph, args.batch), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if args.fault == "staggered-gc" and step % world == rank:
            gc.collect()
        times.append(time.perf_counter() - start)
        if rank == 0 and step % 25 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(times[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
