"""Virtual screening: rank 0 hands out ligands one by one, the others dock what they are given.

usage: torchrun --nproc-per-node 3 docking_queue.py
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function, schedule

ATOMS, POSES, LIGANDS = 24, 48, 6
STOP = -1


def pocket():
    return torch.randn(220, 3, generator=torch.Generator().manual_seed(0)) * 4


def ligand(number):
    return torch.randn(ATOMS, 3, generator=torch.Generator().manual_seed(number + 1))


def dock(protein, number):
    """The best of some random poses: its energy, and where its atoms are."""
    generator = torch.Generator().manual_seed(1000 + number)
    rotation = torch.linalg.qr(torch.randn(POSES, 3, 3, generator=generator))[0]
    shift = torch.randn(POSES, 1, 3, generator=generator) * 4
    poses = ligand(number) @ rotation + shift
    distance = torch.cdist(poses.flatten(0, 1), protein).clamp(min=0.8)
    repelled, attracted = (2.5 / distance).pow(6), (2.5 / distance).pow(3)
    energy = (repelled - 2 * attracted).view(POSES, -1).sum(1)
    best = energy.argmin()
    return energy[best], poses[best]


def cluster(poses, steps=4):
    """Poses that are alike share a cluster: soft medoids over all pairs of distances."""
    flat = torch.stack(poses).flatten(1)
    apart = torch.cdist(flat, flat)
    share = torch.softmax(-apart, 1)
    for _ in range(steps):
        share = torch.softmax(-torch.cdist(share @ flat, flat), 1)
    return share.argmax(1)


class Master:
    """Answers whoever asks first; poses found so far are clustered for the report."""

    def __init__(self, on_arrival):
        self.on_arrival = on_arrival
        self.poses = [ligand(-n) for n in range(2, 320)]  # from the last campaign
        self.energies = {}

    def screen(self, numbers):
        waiting, done = [*numbers], []
        message = torch.empty(2 + 3 * ATOMS)
        while len(done) < dist.get_world_size() - 1:
            worker = dist.recv(message)  # from any
            number, energy = int(message[0]), message[1].item()
            if number != STOP:
                self.energies[number] = energy
                self.poses.append(message[2:].clone().view(ATOMS, 3))
                if self.on_arrival:
                    with record_function("cluster"):
                        cluster(self.poses)
            if waiting:
                dist.send(torch.tensor([waiting.pop()]), dst=worker)
            else:
                done.append(worker)
        for worker in done:
            dist.send(torch.tensor([STOP]), dst=worker)


def work(protein):
    message, task = torch.full((2 + 3 * ATOMS,), float(STOP)), torch.empty(1, dtype=torch.long)
    while True:
        dist.send(message, dst=0)
        dist.recv(task, src=0)
        number = int(task)
        if number == STOP:
            return
        with record_function("dock"):
            energy, pose = dock(protein, number)
        message = torch.cat([torch.stack([torch.tensor(float(number)), energy]), pose.flatten()])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=["none", "cluster-on-arrival"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    master = Master(args.fault == "cluster-on-arrival") if dist.get_rank() == 0 else None
    protein = pocket()
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=3, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/docking.json"),
    ) as profiler:
        for batch in range(12):
            if master:
                master.screen(range(batch * LIGANDS, (batch + 1) * LIGANDS))
            else:
                work(protein)
            profiler.step()
    if master:
        groups = cluster(master.poses).unique().numel()
        print(f"{len(master.energies)} ligands docked, {groups} clusters of poses")
        assert sorted(master.energies) == [*range(12 * LIGANDS)]
        assert abs(master.energies[5] - dock(protein, 5)[0].item()) < 1e-2
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
