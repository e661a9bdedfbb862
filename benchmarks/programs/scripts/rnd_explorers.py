"""Three explorers of mazes are rewarded for what a network cannot predict yet (RND).

Each has eight mazes. The last maze of the last rank was started with ``render_mode`` still set:
it draws what it shows at each of its steps, in software.
"""

import argparse
import os
import random
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

SIDE, MAZES, ROLLOUT = 12, 8, 10
MOVES = ((0, 1), (1, 0), (0, -1), (-1, 0))


class Maze:
    def __init__(self, seed, render):
        self.rng = random.Random(seed)
        self.walls = {(self.rng.randrange(SIDE), self.rng.randrange(SIDE)) for _ in range(30)}
        self.at, self.render = (0, 0), render
        self.walls.discard(self.at)

    def step(self, action):
        for _ in range(20):  # a wind pushes the dust about, for as many ticks of the simulation
            self.wind = [self.rng.random() for _ in range(4)]
        dx, dy = MOVES[action]
        there = (self.at[0] + dx) % SIDE, (self.at[1] + dy) % SIDE
        if there not in self.walls:
            self.at = there
        if self.render:
            self.frame = self.draw()
        return self.at

    def draw(self, pixels=16):
        """A picture of it in bytes: walls are dark, and what is near is lit."""
        side = SIDE * pixels
        frame = bytearray(side * side)
        x, y = self.at
        for i in range(side):
            for j in range(0, side, 2):
                far = abs(i // pixels - x) + abs(j // pixels - y)
                frame[i * side + j] = 0 if (i // pixels, j // pixels) in self.walls else 255 - far
        return frame


def observe(mazes):
    seen = torch.zeros(len(mazes), 2 * SIDE)
    for row, maze in zip(seen, mazes, strict=True):
        row[maze.at[0]] = row[SIDE + maze.at[1]] = 1
    return seen


def net(out, depth):
    layers = [nn.Linear(2 * SIDE, 256), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, out))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--fault", choices=["none", "render-mode"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    target, predictor, policy = net(32, 1), net(32, 2), net(4, 1)
    target.requires_grad_(False)
    parameters = [*predictor.parameters(), *policy.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    drawn = args.fault == "render-mode" and rank == world - 1
    mazes = [Maze(100 * rank + i, drawn and i == MAZES - 1) for i in range(MAZES)]
    torch.manual_seed(1 + rank)
    surprises, times = [], []
    for _ in range(args.steps):
        before = time.perf_counter()
        states, actions, rewards = [], [], []
        with torch.no_grad():
            for _ in range(ROLLOUT):
                states.append(observe(mazes))
                actions.append(policy(states[-1]).softmax(-1).multinomial(1)[:, 0])
                for maze, action in zip(mazes, actions[-1].tolist(), strict=True):
                    maze.step(action)
                new = observe(mazes)
                rewards.append((predictor(new) - target(new)).square().mean(1))
        states, actions = torch.cat(states), torch.cat(actions)
        gain = torch.cat(rewards)
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        for _ in range(3):
            surprise = F.mse_loss(predictor(states), target(states))
            nll = F.cross_entropy(policy(states), actions, reduction="none")
            optimizer.zero_grad()
            (surprise + 0.1 * (nll * gain).mean()).backward()
            flat = torch.cat([p.grad.flatten() for p in parameters]) / world
            dist.all_reduce(flat)
            parts = flat.split([p.numel() for p in parameters])
            for p, grad in zip(parameters, parts, strict=True):
                p.grad.copy_(grad.view_as(p))
            optimizer.step()
        surprises.append(surprise.item())
        times.append(time.perf_counter() - before)
    assert surprises[-1] < 0.5 * surprises[0], surprises
    if rank == 0 and os.environ.get("TIMES"):
        mean, median = statistics.mean(times[2:]), statistics.median(times[2:])
        print(f"{1000 * mean:.1f} ms a step, median {1000 * median:.1f}", file=sys.stderr)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
