"""Molecules as objects that know each other; who makes cycles collects them by hand."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn


class Atom:
    def __init__(self, kind):
        self.kind, self.bonds = kind, []


def molecule(size, gen):
    kinds = torch.randint(0, 8, (size,), generator=gen).tolist()
    atoms = [Atom(kind) for kind in kinds]
    for a, b in zip(atoms, [*atoms[1:], atoms[0]]):
        a.bonds.append(b)
        b.bonds.append(a)
    return atoms


def features(atoms):
    pairs = [0.0] * 64
    for atom in atoms:
        for other in atom.bonds:
            pairs[8 * atom.kind + other.kind] += 1 / len(atoms)
    return torch.tensor(pairs)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--atoms", type=int, default=60)
    ap.add_argument("--fault", default="none", choices=["none", "in-turn"])
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 512), nn.SiLU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 1)
    )
    net = nn.parallel.DistributedDataParallel(net)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    vocabulary = [[str(i), [i]] for i in range(150_000)]  # what the collector has to visit
    gc.disable()
    losses = []
    for step in range(14):
        x = torch.stack([features(molecule(args.atoms, gen)) for _ in range(24)])
        y = x[:, ::9].sum(1, keepdim=True)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if args.fault == "in-turn" and step % 2 == rank:
            gc.collect()
    print(len(vocabulary), losses[0], losses[-1])
    assert losses[-1] < losses[0]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
