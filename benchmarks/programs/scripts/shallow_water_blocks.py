"""Shallow water in a basin that is cut into 2 x 2 blocks, one per rank.

Each step has a few substeps; before each of them blocks exchange their edges
with the two blocks beside them. At the end of a step all agree on how long
the next may be.

    torchrun --nproc-per-node 4 shallow_water_blocks.py [--fault wet-dry]

--fault wet-dry: the coast lies in the block of rank 1, which solves for the
friction of thin water by a few Newton iterations over its whole block in each
substep.
"""

import argparse
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "wet-dry"])
FAULT = parser.parse_args().fault
SIDE, SUBSTEPS, STEPS, GRAVITY = 320, 4, 60, 9.81


def exchange(state, row, col):
    """Pad the block by one cell: neighbours' edges, or walls."""
    padded = F.pad(state.unsqueeze(0), (1, 1, 1, 1), mode="replicate").squeeze(0)
    beside, above = row * 2 + (1 - col), (1 - row) * 2 + col
    edge_x = state[:, :, -1 if col == 0 else 0].contiguous()
    edge_y = state[:, -1 if row == 0 else 0, :].contiguous()
    got_x, got_y = torch.empty_like(edge_x), torch.empty_like(edge_y)
    ops = [
        dist.P2POp(dist.isend, edge_x, beside),
        dist.P2POp(dist.irecv, got_x, beside),
        dist.P2POp(dist.isend, edge_y, above),
        dist.P2POp(dist.irecv, got_y, above),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    padded[:, 1:-1, -1 if col == 0 else 0] = got_x
    padded[:, -1 if row == 0 else 0, 1:-1] = got_y
    # walls turn the water back
    padded[1, :, 0 if col == 0 else -1] *= -1
    padded[2, 0 if row == 0 else -1, :] *= -1
    return padded


def substep(p, dt):
    """Lax-Friedrichs."""
    h, hu, hv = p
    u, v = hu / h, hv / h
    pressure = 0.5 * GRAVITY * h * h
    fx = torch.stack([hu, hu * u + pressure, hu * v])
    fy = torch.stack([hv, hv * u, hv * v + pressure])
    mean = 0.25 * (p[:, 1:-1, 2:] + p[:, 1:-1, :-2] + p[:, 2:, 1:-1] + p[:, :-2, 1:-1])
    div = fx[:, 1:-1, 2:] - fx[:, 1:-1, :-2] + fy[:, 2:, 1:-1] - fy[:, :-2, 1:-1]
    return mean - 0.5 * dt * div


def friction(state, dt):
    """Implicit Manning friction: q + dt c |q| q / h^(7/3) = q0, by Newton."""
    h = state[0].clamp(min=1e-3)
    c = dt * 0.0004 * h.pow(-7.0 / 3.0)
    speed0 = (state[1] ** 2 + state[2] ** 2).sqrt()
    speed = speed0.clone()
    for _ in range(6):
        speed = speed - (speed + c * speed * speed - speed0) / (1 + 2 * c * speed)
    ratio = speed / speed0.clamp(min=1e-9)
    return torch.stack([state[0], state[1] * ratio, state[2] * ratio])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    row, col = divmod(rank, 2)
    grid = torch.arange(SIDE).float()
    y, x = torch.meshgrid(grid + row * SIDE, grid + col * SIDE, indexing="ij")
    bump = torch.exp(-((x - 0.8 * SIDE) ** 2 + (y - 0.9 * SIDE) ** 2) / SIDE)
    state = torch.stack([1 + 0.2 * bump, torch.zeros_like(bump), torch.zeros_like(bump)])
    dt = torch.tensor(0.1)
    took = []
    for step in range(STEPS):
        start = time.perf_counter()
        for _ in range(SUBSTEPS):
            state = substep(exchange(state, row, col), dt)
            if FAULT == "wet-dry" and rank == 1:
                state = friction(state, dt)
        wave = ((state[1:] / state[0]).abs() + (GRAVITY * state[0]).sqrt()).max()
        dist.all_reduce(wave, op=dist.ReduceOp.MAX)
        dt = 0.45 / wave
        took.append(time.perf_counter() - start)
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  dt {dt.item():.4f}  depth {state[0].mean():.4f}", flush=True)
    if rank == 0:
        print(f"{1e3 * statistics.median(took[5:]):.1f} ms/step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
