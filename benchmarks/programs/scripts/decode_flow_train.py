"""Action recognition fed by a chain of ranks.

rank 0 decodes clips (inverse DCT), rank 1 adds the motion field (block
matching), rank 2 trains on frames and motion.

    torchrun --nproc-per-node 3 decode_flow_train.py [--fault block-loop]
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "block-loop"])
FAULT = parser.parse_args().fault
CLIPS, SIDE, BLOCK, REACH, ACTIONS, STEPS = 10, 64, 8, 2, 5, 80
GRID = SIDE // BLOCK
SHIFTS = [(dy, dx) for dy in range(-REACH, REACH + 1) for dx in range(-REACH, REACH + 1)]


def decoder(gen):
    k = torch.arange(SIDE).float()
    basis = torch.cos(torch.pi / SIDE * (k.view(1, -1) + 0.5) * k.view(-1, 1))
    decay = 1 / (1 + k.view(-1, 1) + k.view(1, -1))
    while True:
        action = torch.randint(ACTIONS, (CLIPS,), generator=gen)
        coeff = torch.randn(CLIPS, SIDE, SIDE, generator=gen) * decay
        first = basis.T @ coeff @ basis
        second = torch.stack(
            [f.roll((int(a) - 2, 1 - int(a) % 3), (0, 1)) for f, a in zip(first, action)]
        )
        yield torch.stack([first, second], dim=1).contiguous(), action


def motion(pair):
    """Best shift of each block, all shifts and blocks at once."""
    a, b = pair[:, 0], pair[:, 1]
    cost = torch.stack([F.avg_pool2d((a.roll(s, (1, 2)) - b).abs(), BLOCK) for s in SHIFTS])
    return torch.tensor(SHIFTS).float()[cost.argmin(0)]


def motion_by_block(pair):
    """Best shift of each block, one block after the other."""
    out = torch.zeros(CLIPS, GRID, GRID, 2)
    padded = F.pad(pair[:, 0], (REACH,) * 4, mode="circular").numpy()
    target = pair[:, 1].numpy()
    for c in range(CLIPS):
        for i in range(GRID):
            for j in range(GRID):
                y, x = i * BLOCK, j * BLOCK
                want = target[c, y : y + BLOCK, x : x + BLOCK]
                best, found = float("inf"), (0, 0)
                for dy, dx in SHIFTS:
                    v, u = y - dy + REACH, x - dx + REACH
                    diff = abs(padded[c, v : v + BLOCK, u : u + BLOCK] - want).sum()
                    if diff < best:
                        best, found = diff, (dy, dx)
                out[c, i, j] = torch.tensor(found)
    return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(2, 12, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Sequential(
            nn.Linear(24 * 16 + 2 * GRID * GRID, 64), nn.ReLU(), nn.Linear(64, ACTIONS)
        )

    def forward(self, pair, flow):
        return self.head(torch.cat([self.look(pair).flatten(1), flow.flatten(1)], dim=1))


def decode():
    clips = decoder(torch.Generator().manual_seed(2))
    pending = []
    for _ in range(STEPS):
        pair, action = next(clips)
        for work, _ in pending:
            work.wait()
        pending = [(dist.isend(t, 1), t) for t in (pair, action)]
    for work, _ in pending:
        work.wait()


def track():
    flow_of = motion_by_block if FAULT == "block-loop" else motion
    pending = []
    for _ in range(STEPS):
        pair, action = torch.empty(CLIPS, 2, SIDE, SIDE), torch.empty(CLIPS, dtype=torch.long)
        dist.recv(pair, 0)
        dist.recv(action, 0)
        flow = flow_of(pair)
        for work, _ in pending:
            work.wait()
        pending = [(dist.isend(t, 2), t) for t in (pair, flow, action)]
    for work, _ in pending:
        work.wait()


def train():
    torch.manual_seed(0)
    net, took = Net(), []
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(STEPS):
        start = time.perf_counter()
        pair, flow = torch.empty(CLIPS, 2, SIDE, SIDE), torch.empty(CLIPS, GRID, GRID, 2)
        action = torch.empty(CLIPS, dtype=torch.long)
        for t in (pair, flow, action):
            dist.recv(t, 1)
        for _ in range(2):  # two passes over each batch of clips
            loss = F.cross_entropy(net(pair, flow), action)
            opt.zero_grad()
            loss.backward()
        opt.step()
        took.append(time.perf_counter() - start)
        if step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.3f}", flush=True)
    print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    (decode, track, train)[dist.get_rank()]()
    dist.barrier()
    dist.destroy_process_group()
