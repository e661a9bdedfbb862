"""Federated learning in cohorts: in every round others average their models with each other."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

PAIRINGS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


class Cohorts:
    """The process groups of the cohorts; each pairing's are made once."""

    def __init__(self):
        self.made = {}

    def mine(self, pairing):
        if pairing not in self.made:
            cohorts = [list(cohort) for cohort in pairing]
            self.made[pairing], _ = dist.new_subgroups_by_enumeration(cohorts)
        return self.made[pairing]


class NewCohorts(Cohorts):
    """The groups are made for a round, and are gone after it."""

    def mine(self, pairing):
        while self.made:
            dist.destroy_process_group(self.made.popitem()[1])
        return super().mine(pairing)


class Client:
    def __init__(self, rank):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 12))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.truth = torch.randn(64, 12)
        self.generator = torch.Generator().manual_seed(rank)
        self.shift = torch.randn(64, generator=self.generator) / 3  # each sees its own users

    def collect(self, batch=32):
        """What the devices of a round's users send."""
        time.sleep(0.010)
        x = torch.randn(batch, 64, generator=self.generator) + self.shift
        return x, (x @ self.truth).argmax(1)

    def step(self):
        x, y = self.collect()
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def average(self, group):
        flat = nn.utils.parameters_to_vector(self.model.parameters())
        dist.all_reduce(flat, group=group)
        nn.utils.vector_to_parameters(flat / group.size(), self.model.parameters())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--fault", choices=["none", "new-groups-each-round"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    client = Client(dist.get_rank())
    cohorts = Cohorts() if args.fault == "none" else NewCohorts()
    for pairing in PAIRINGS:
        cohorts.mine(pairing)
    history = []
    for number in range(args.rounds):
        history.append(client.step())
        client.average(cohorts.mine(PAIRINGS[number % len(PAIRINGS)]))
    assert sum(history[-4:]) < sum(history[:4]), history
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
