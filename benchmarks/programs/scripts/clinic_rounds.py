"""Federated averaging over four clinics: arrhythmias in electrocardiograms.

    torchrun --nproc-per-node 4 clinic_rounds.py [--fault pickled]

--fault pickled: clinics exchange their state dicts as Python objects, and each
averages all of them by itself.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

SAMPLES, BATCH, LOCAL, ROUNDS = 192, 96, 2, 50


def network():
    return nn.Sequential(
        nn.Conv1d(2, 16, 7, stride=2, padding=3),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 32, 7, stride=3, padding=3),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * SAMPLES // 6, 56),
        nn.ReLU(),
        nn.Linear(56, 4),
    )


class Clinic:
    """Its patients never leave it, only what was learnt from them."""

    def __init__(self, number, pickled):
        self.gen = torch.Generator().manual_seed(number)
        torch.manual_seed(0)
        self.net = network()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.03, momentum=0.5)
        self.clinics = dist.get_world_size()
        self.share = self.exchange_objects if pickled else self.exchange_sums

    def hearts(self):
        label = torch.randint(4, (BATCH,), generator=self.gen)
        t = torch.arange(SAMPLES) / SAMPLES
        beat = torch.sin(2 * torch.pi * (3 + 2 * label[:, None]) * t)
        leads = torch.stack([beat, beat.roll(5, 1)], 1)
        return leads + 0.5 * torch.randn(leads.shape, generator=self.gen), label

    def local_step(self):
        leads, label = self.hearts()
        loss = F.cross_entropy(self.net(leads), label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def exchange_sums(self):
        state = [v for v in self.net.state_dict().values() if v.is_floating_point()]
        flat = torch.cat([v.flatten() for v in state])
        dist.all_reduce(flat)
        for value, mean in zip(state, flat.div_(self.clinics).split([v.numel() for v in state])):
            value.copy_(mean.view_as(value))

    def exchange_objects(self):
        states = [None] * self.clinics
        dist.all_gather_object(states, self.net.state_dict())
        mean = {
            name: torch.stack([s[name].float() for s in states]).mean(0).to(value.dtype)
            for name, value in states[0].items()
        }
        self.net.load_state_dict(mean)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "pickled"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    clinic = Clinic(dist.get_rank(), args.fault == "pickled")
    times = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(LOCAL):
            loss = clinic.local_step()
        clinic.share()
        times.append(time.perf_counter() - began)
        if dist.get_rank() == 0 and number % 10 == 0:
            print(f"round {number}: loss {loss:.3f}", flush=True)
    if dist.get_rank() == 0:
        print(f"{1000 * statistics.median(times[5:]):.1f} ms/round")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
