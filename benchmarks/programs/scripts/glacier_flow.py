"""Ice thickness of a glacier: explicit sweeps on strips of a grid, halos exchanged.

Every time step does a fixed number of Jacobi sweeps for the velocity, then
moves the ice. Nothing is trained.

    torchrun --nproc-per-node 3 glacier_flow.py [--fault check-often]

--fault check-often: left over from debugging, the residual, the mass and the
largest velocity of the whole glacier are looked at after every third sweep.
"""

import argparse
import math
import time

import torch
import torch.distributed as dist

ROWS, COLS, SWEEPS, STEPS = 400, 640, 12, 200


class Strip:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        y = torch.arange(ROWS + 2).float()[:, None] + rank * ROWS
        x = torch.arange(COLS).float()[None]
        self.thickness = 100 * torch.exp(-(((x - 300) / 150) ** 2) - ((y - 450) / 250) ** 2)
        self.bed = 0.2 * x + 5 * torch.sin(y / 30)
        self.velocity = torch.zeros(ROWS + 2, COLS)

    def exchange(self, field):
        ops = []
        if self.rank > 0:
            ops.append(dist.P2POp(dist.isend, field[1].clone(), self.rank - 1))
            ops.append(dist.P2POp(dist.irecv, field[0], self.rank - 1))
        if self.rank < self.world - 1:
            ops.append(dist.P2POp(dist.isend, field[-2].clone(), self.rank + 1))
            ops.append(dist.P2POp(dist.irecv, field[-1], self.rank + 1))
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    def forcing(self):
        surface = self.thickness + self.bed
        slope = (surface[1:-1, 2:] - surface[1:-1, :-2]) / 2
        return 1e-4 * self.thickness[1:-1, 1:-1] * slope

    def sweep(self, force):
        v = self.velocity
        new = 0.25 * (v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, 2:] + v[1:-1, :-2]) + force
        change = new - v[1:-1, 1:-1]
        v[1:-1, 1:-1] += 0.9 * change
        return change

    def advect(self, dt=0.0005):
        flux = self.velocity * self.thickness
        self.thickness[1:-1, 1:-1] -= dt * (flux[1:-1, 2:] - flux[1:-1, :-2]) / 2
        self.thickness.clamp_(min=0)


def whole(value, op=dist.ReduceOp.SUM):
    value = value.reshape(1)
    dist.all_reduce(value, op=op)
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "check-often"])
    check_often = parser.parse_args().fault == "check-often"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    strip = Strip(rank, dist.get_world_size())
    times = []
    for step in range(STEPS):
        began = time.perf_counter()
        force = strip.forcing()
        for sweep in range(SWEEPS):
            strip.exchange(strip.velocity)
            change = strip.sweep(force)
            if check_often and sweep % 3 == 2:
                residual = whole(change.square().sum())
                mass = whole(strip.thickness[1:-1].sum())
                fastest = whole(strip.velocity.abs().max(), dist.ReduceOp.MAX)
                if not math.isfinite(residual + mass + fastest):
                    raise RuntimeError(f"blew up in step {step}")
        strip.advect()
        strip.exchange(strip.thickness)
        residual = whole(change.square().sum())
        if not math.isfinite(residual):
            raise RuntimeError(f"blew up in step {step}")
        times.append(time.perf_counter() - began)
        if rank == 0 and step % 30 == 0:
            print(f"t = {step:3d}  residual {residual:.3e}", flush=True)
    if rank == 0:
        print(f"mean step {1e3 * sum(times[5:]) / len(times[5:]):.1f} ms")
    dist.barrier()  # nobody leaves while another still talks
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
