"""Docking of ligands: rank 0 deals out poses, every rank scores its share with numpy.

    torchrun --nproc-per-node 3 docking_farm.py [--fault parse-in-loop]

--fault parse-in-loop: rank 0 parses the text of the next poses when their round comes;
without the fault the texts have all been parsed beforehand.
"""

import argparse
import json
import random
import time

import numpy as np
import torch
import torch.distributed as dist

POSES, ATOMS, POCKET, ROUNDS = 150, 24, 300, 28


def texts(rounds, per_round):
    """What the pose generator wrote, a line of JSON per pose."""
    rng = random.Random(5)
    pool = []
    for _ in range(per_round):
        atoms = [
            {"element": rng.choice("CNOS"), "xyz": [rng.uniform(-9, 9) for _ in range(3)]}
            for _ in range(ATOMS)
        ]
        pool.append(json.dumps({"score": None, "atoms": atoms, "note": "generated"}))
    return [pool for _ in range(rounds)]


def parse(lines):
    poses = np.empty((len(lines), ATOMS, 3), np.float32)
    for i, line in enumerate(lines):
        for j, atom in enumerate(json.loads(line)["atoms"]):
            if atom["element"] not in {"C", "N", "O", "S"}:
                raise ValueError(atom)
            poses[i, j] = [round(x, 3) for x in atom["xyz"]]
    return torch.from_numpy(poses)


class Pocket:
    def __init__(self):
        rng = np.random.default_rng(1)
        self.sites = rng.uniform(-12, 12, (POCKET, 3)).astype(np.float32)
        self.charge = rng.normal(size=POCKET).astype(np.float32)

    def score(self, poses):
        energies = np.empty(len(poses), np.float32)
        for i, pose in enumerate(poses):
            square = ((pose[:, None] - self.sites[None]) ** 2).sum(-1) + 0.5
            sixth = 1 / square**3
            energy = sixth * sixth - 2 * sixth + 0.05 * self.charge / np.sqrt(square)
            energies[i] = energy.sum()
        return torch.from_numpy(energies)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "parse-in-loop"])
    late = parser.parse_args().fault == "parse-in-loop"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pocket = Pocket()
    todo, ready = [], []
    if rank == 0:
        todo = texts(ROUNDS, POSES * world)
        if not late:
            parsed = parse(todo[0])  # the pool is the same for every round
            ready = [parsed for _ in todo]
    best, times = float("inf"), []
    dist.barrier()
    for turn in range(ROUNDS):
        began = time.perf_counter()
        mine = torch.empty(POSES, ATOMS, 3)
        shares = scores = None
        if rank == 0:
            poses = parse(todo[turn]) if late else ready[turn]
            shares = list((poses + 0.1 * turn).split(POSES))
            scores = [torch.empty(POSES) for _ in range(world)]
        dist.scatter(mine, shares, src=0)
        energies = pocket.score(mine.numpy())
        dist.gather(energies, scores, dst=0)
        if rank == 0:
            best = min(best, torch.cat(scores).min().item())
        times.append(time.perf_counter() - began)
        if rank == 0 and turn % 7 == 0:
            print(f"round {turn:3d} best {best:.2f}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
