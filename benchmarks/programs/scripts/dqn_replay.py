"""DQN with prioritised replay: each rank plays its own cart, gradients are averaged by DDP."""

import argparse
import copy
import math
import random

import torch
import torch.distributed as dist
from torch import nn


class Replay:
    """Transitions and their priorities, as lists."""

    def __init__(self, one_by_one):
        self.one_by_one = one_by_one
        self.items, self.priorities = [], []

    def add(self, item):
        self.items.append(item)
        self.priorities.append(max(self.priorities[-50:], default=1.0))

    def sample(self, k):
        everything = range(len(self.items))
        if self.one_by_one:
            chosen = [random.choices(everything, self.priorities)[0] for _ in range(k)]
        else:
            chosen = random.choices(everything, self.priorities, k=k)
        columns = zip(*(self.items[i] for i in chosen))
        return chosen, [torch.tensor(column) for column in columns]

    def update(self, chosen, errors):
        for i, error in zip(chosen, errors.abs().tolist()):
            self.priorities[i] = error + 1e-3


def play(state, action):
    """A pendulum that wants to stay up."""
    angle, speed = state
    speed = 0.98 * speed + 0.15 * math.sin(angle) + 0.2 * (action - 1)
    angle = (angle + 0.1 * speed + math.pi) % (2 * math.pi) - math.pi
    return (angle, speed), math.cos(angle)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--warm", type=int, default=2500)
    parser.add_argument("--fault", choices=["none", "draw-one-by-one"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(rank)
    torch.manual_seed(0)
    # rank 1's machine still has last month's package
    replay = Replay(args.fault == "draw-one-by-one" and rank == 1)
    q = nn.Sequential(
        nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512),
        nn.ReLU(), nn.Linear(512, 3),
    )  # fmt: skip
    target = copy.deepcopy(q)
    ddp = nn.parallel.DistributedDataParallel(q)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-4)
    state, returned = (0.5, 0.0), []
    for frame in range(args.warm + 24 * 4):
        if frame < args.warm or random.random() < 0.1:
            action = random.randrange(3)
        else:
            action = q(torch.tensor(state)).argmax().item()
        after, reward = play(state, action)
        replay.add((state, action, reward, after))
        state = after
        if frame < args.warm or frame % 4:
            continue
        chosen, (s, a, r, after_s) = replay.sample(args.batch)
        with torch.no_grad():
            goal = r + 0.95 * target(after_s).max(1).values
        error = ddp(s).gather(1, a[:, None]).squeeze(1) - goal
        loss = nn.functional.huber_loss(error, torch.zeros_like(error))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replay.update(chosen, error.detach())
        returned.append(loss.item())
    assert len(returned) == 24 and all(map(math.isfinite, returned))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
