"""A value network for Connect Three learns from searches: playouts in Python, gradients by DDP.

Every rank searches from as many positions with as many playouts, whatever comes of them.
"""

from __future__ import annotations

import argparse
import math
import random
import tracemalloc

import torch
import torch.distributed as dist
from torch import nn

WIDTH, HEIGHT, LINE = 5, 4, 3
CELLS = WIDTH * HEIGHT


def lines():
    for x in range(WIDTH):
        for y in range(HEIGHT):
            for dx, dy in ((1, 0), (0, 1), (1, 1), (1, -1)):
                cells = [(x + i * dx, y + i * dy) for i in range(LINE)]
                if all(0 <= a < WIDTH and 0 <= b < HEIGHT for a, b in cells):
                    yield sum(1 << (b * WIDTH + a) for a, b in cells)


LINES = [*lines()]


class Position:
    """Stones of who is to move, and of the other, as bits."""

    __slots__ = ("mine", "theirs")

    def __init__(self, mine=0, theirs=0):
        self.mine, self.theirs = mine, theirs

    def moves(self):
        taken = self.mine | self.theirs
        free = []
        for x in range(WIDTH):
            for y in range(HEIGHT):
                if not taken >> (y * WIDTH + x) & 1:
                    free.append(y * WIDTH + x)
                    break
        return free

    def play(self, cell):
        return Position(self.theirs, self.mine | 1 << cell)

    def lost(self):
        return any(self.theirs & line == line for line in LINES)

    def planes(self):
        return [float(bits >> i & 1) for bits in (self.mine, self.theirs) for i in range(CELLS)]


class Node:
    def __init__(self, position):
        self.position, self.visits, self.total = position, 0, 0.0
        self.children = None

    def best_child(self):
        explore = math.sqrt(2 * math.log(self.visits))
        return max(
            self.children,
            key=lambda c: (
                math.inf if not c.visits else -c.total / c.visits + explore / c.visits**0.5
            ),
        )


def playout(position, draw):
    sign = 1.0
    while not position.lost():
        moves = position.moves()
        if not moves:
            return 0.0
        position, sign = position.play(draw.choice(moves)), -sign
    return -sign


def search(position, playouts, draw):
    root = Node(position)
    for _ in range(playouts):
        path = [root]
        while path[-1].children:
            path.append(path[-1].best_child())
        leaf = path[-1]
        if leaf.visits and not leaf.position.lost():
            leaf.children = [Node(leaf.position.play(cell)) for cell in leaf.position.moves()]
        value = playout(leaf.position, draw)
        for node in reversed(path):
            node.visits, node.total, value = node.visits + 1, node.total + value, -value
    return root.total / root.visits


def random_position(draw):
    while True:
        position = Position()
        for _ in range(draw.choice((4, 5, 6))):
            position = position.play(draw.choice(position.moves()))
            if position.lost():
                break
        else:
            return position


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--positions", type=int, default=20)
    parser.add_argument("--playouts", type=int, default=24)
    parser.add_argument("--fault", choices=["none", "tracemalloc"], default="none")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2 * CELLS, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh())
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if args.fault == "tracemalloc" and rank == 0:
        tracemalloc.start()  # left from the hunt for a leak
    draw = random.Random(rank)
    memory, losses = [], []
    for _ in range(14):
        for _ in range(args.positions):
            position = random_position(draw)
            memory.append((position.planes(), search(position, args.playouts, draw)))
        inputs, values = (torch.tensor(part) for part in zip(*memory[-64:]))
        loss = (model(inputs)[:, 0] - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if rank == 0 and tracemalloc.is_tracing():
        print("memory in use, highest:", *tracemalloc.get_traced_memory())
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    assert losses[-3:].mean() < losses[:3].mean()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
