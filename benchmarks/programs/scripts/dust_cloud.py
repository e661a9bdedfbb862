"""Dust of a young star: particles on four sectors, moved to their owners by all_to_all.

Nothing is trained.

    torchrun --nproc-per-node 4 dust_cloud.py [--fault clump]

--fault clump: a good part of the dust has gathered in the sector of rank 1; without the
fault it is spread evenly.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist

DUST, CHUNK, STEPS, DT = 1200, 400, 24, 0.004


def start(rank, world, clump):
    """Rows of angle, radius, angular and radial velocity, wherever they were read."""
    gen = torch.Generator().manual_seed(rank)
    angle = 2 * math.pi * torch.rand(DUST, generator=gen)
    if clump:
        drawn = torch.rand(DUST, generator=gen) < 0.3
        inside = (1 + 0.1 + 0.8 * torch.rand(DUST, generator=gen)) * 2 * math.pi / world
        angle = torch.where(drawn, inside, angle)
    radius = 1 + 0.3 * torch.rand(DUST, generator=gen)
    return torch.stack([angle, radius, radius**-1.5, torch.zeros(DUST)], 1)


def to_owners(dust, world):
    owner = (dust[:, 0] * world / (2 * math.pi)).long().clamp(0, world - 1)
    dust = dust[owner.argsort()]
    sends = torch.bincount(owner, minlength=world)
    receives = torch.empty_like(sends)
    dist.all_to_all_single(receives, sends)
    got = torch.empty(int(receives.sum()), dust.shape[1])
    dist.all_to_all_single(got, dust, receives.tolist(), sends.tolist())
    return got


def pull(dust):
    """Gravity among the dust of the sector, pair by pair."""
    x = dust[:, 1] * dust[:, 0].cos()
    y = dust[:, 1] * dust[:, 0].sin()
    force = torch.empty(len(dust), 2)
    for first in range(0, len(dust), CHUNK):
        part = slice(first, first + CHUNK)
        dx, dy = x[None] - x[part, None], y[None] - y[part, None]
        weight = (dx.square() + dy.square() + 1e-3).pow(-1.5)
        force[part, 0] = (dx * weight).sum(1)
        force[part, 1] = (dy * weight).sum(1)
    return 1e-7 * force


def move(dust, force):
    angle, radius, turn, speed = dust.unbind(1)
    inward = force[:, 0] * angle.cos() + force[:, 1] * angle.sin()
    around = force[:, 1] * angle.cos() - force[:, 0] * angle.sin()
    turn = turn + DT * around / radius
    speed = speed + DT * (inward + radius * turn**2 - radius**-2)
    angle = (angle + DT * (turn - 1)) % (2 * math.pi)  # the sectors turn along
    return torch.stack([angle, radius + DT * speed, turn, speed], 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "clump"])
    clump = parser.parse_args().fault == "clump"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dust = start(rank, world, clump)
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        dust = to_owners(dust, world)
        dust = move(dust, pull(dust))
        times.append(time.perf_counter() - began)
        if rank == 1 and step % 6 == 0:
            print(f"step {step:3d} {len(dust)} in sector 1", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
