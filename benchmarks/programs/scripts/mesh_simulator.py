"""A learned simulator on a mesh that is cut over the ranks.

Each rank owns a slab of the nodes and predicts their accelerations from the
velocities of the neighbours, wherever these live: velocities are gathered in
every step. What does not move (rest positions, materials, the eigenvectors of
the mesh) is gathered once.

    torchrun --nproc-per-node 3 mesh_simulator.py [--fault regather]

--fault regather: what does not move is gathered in every step, too.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "regather"])
FAULT = parser.parse_args().fault
OWN, NEAR, STATIC, HIDDEN, STEPS = 4500, 4, 128, 32, 60


class Simulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.rest = nn.Linear(STATIC, HIDDEN)
        self.message = nn.Sequential(
            nn.Linear(2 * HIDDEN + 6, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)
        )
        self.update = nn.Sequential(nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3))

    def forward(self, velocity, static, mine, near):
        rest = self.rest(static)
        here = rest[mine]
        there = rest[near.flatten()].view(OWN, NEAR, HIDDEN)
        moved = torch.cat(
            [
                velocity[mine].unsqueeze(1).expand(-1, NEAR, -1),
                velocity[near.flatten()].view(OWN, NEAR, 3),
            ],
            dim=2,
        )
        edges = torch.cat([here.unsqueeze(1).expand(-1, NEAR, -1), there, moved], dim=2)
        return self.update(torch.cat([here, self.message(edges).sum(1)], dim=1))


def gather(part, world):
    parts = [torch.empty_like(part) for _ in range(world)]
    dist.all_gather(parts, part)
    return torch.cat(parts)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Simulator()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(70 + rank)
    own_static = torch.randn(OWN, STATIC, generator=gen)
    mine = torch.arange(rank * OWN, (rank + 1) * OWN)
    offset = torch.randint(1, 40, (OWN, NEAR), generator=gen)
    near = (mine.unsqueeze(1) + offset) % (world * OWN)
    velocity = torch.randn(OWN, 3, generator=gen)
    static = gather(own_static, world)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        everyone = gather(velocity, world)
        if FAULT == "regather":
            static = gather(own_static, world)
        # the truth: springs to the neighbours, and a little friction
        target = (everyone[near.flatten()].view(OWN, NEAR, 3) - velocity.unsqueeze(1)).mean(1)
        target = target - 0.05 * velocity
        loss = F.mse_loss(model(everyone, static, mine, near), target)
        opt.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        for p, g in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
            p.grad.copy_(g.view_as(p) / world)
        opt.step()
        velocity = velocity + 0.1 * target + 0.02 * torch.randn(OWN, 3, generator=gen)
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
