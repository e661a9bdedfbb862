"""Coarse-grained membrane dynamics: beads are dealt out over the ranks.

Each rank computes the forces on its own beads from a neighbour list with a
skin; positions are gathered after every time step.

    torchrun --nproc-per-node 2 membrane_pairs.py [--fault rebuild]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "rebuild"])
FAULT = parser.parse_args().fault
BEADS, BOX, CUT, SKIN = 1400, 16.0, 3.2, 0.5
DT, STEPS = 0.002, 110
REBUILD_EVERY = 1 if FAULT == "rebuild" else 25


def minimum_image(d):
    return d - BOX * torch.round(d / BOX)


class Neighbours:
    def __init__(self, mine):
        self.mine = mine
        self.i = self.j = None

    def build(self, x):
        """All pairs (own bead, any bead) closer than cut-off plus skin."""
        rows, cols = [], []
        for part in self.mine.split(250):
            d = minimum_image(x[part].unsqueeze(1) - x.unsqueeze(0))
            a, b = (d.pow(2).sum(-1) < (CUT + SKIN) ** 2).nonzero(as_tuple=True)
            rows.append(part[a])
            cols.append(b)
        i, j = torch.cat(rows), torch.cat(cols)
        keep = i != j
        self.i, self.j = i[keep], j[keep]


def forces(x, near, first, count):
    """Soft repulsion with an attractive tail, tension towards the midplane."""
    d = minimum_image(x[near.i] - x[near.j])
    r = d.norm(dim=-1).clamp(min=0.2)
    push = torch.where(r < 1.0, 30 * (1.0 - r), -2.0 * torch.sin(torch.pi * (r - 1) / (CUT - 1)))
    push = torch.where(r < CUT, push, torch.zeros(()))
    f = torch.zeros(count, 3).index_add_(0, near.i - first, d * (push / r).unsqueeze(-1))
    f[:, 2] -= 0.5 * (x[first : first + count, 2] - BOX / 2)
    energy = torch.where(r < CUT, push.abs(), torch.zeros(())).sum()
    return f, energy


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(0)
    x = torch.rand(BEADS, 3, generator=gen) * BOX
    x[:, 2] = BOX / 2 + 2.0 * torch.randn(BEADS, generator=gen)
    x = x[torch.randperm(BEADS, generator=gen)]
    count = BEADS // world
    first = rank * count
    mine = torch.arange(first, first + count)
    v = 0.3 * torch.randn(count, 3, generator=torch.Generator().manual_seed(1 + rank))
    noise = torch.Generator().manual_seed(20 + rank)
    near = Neighbours(mine)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        if step % REBUILD_EVERY == 0:
            near.build(x)
        f, energy = forces(x, near, first, count)
        v = 0.99 * v + DT * f + 0.01 * torch.randn(count, 3, generator=noise)
        own = torch.remainder(x[mine] + DT * v, BOX)
        everyone = torch.empty_like(x)
        dist.all_gather(list(everyone.chunk(world)), own)
        x = everyone
        if step % 10 == 0:
            dist.all_reduce(energy)
            if rank == 0 and step % 50 == 0:
                print(
                    f"step {step:3d}  energy {energy.item() / BEADS:.3f}  pairs {len(near.i)}",
                    flush=True,
                )
        took.append(time.perf_counter() - start)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
