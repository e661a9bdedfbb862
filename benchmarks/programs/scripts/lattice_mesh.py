"""Flow past a cylinder: lattice Boltzmann (D2Q9) on a two-dimensional mesh of ranks.

After each collision, populations that leave a rank's rectangle are sent to its neighbours, first
along one dimension of the mesh, then along the other.
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile, record_function, schedule

DX = torch.tensor([0, 1, 0, -1, 0, 1, -1, -1, 1])
DY = torch.tensor([0, 0, 1, 0, -1, 1, 1, -1, -1])
OPPOSITE = [0, 3, 4, 1, 2, 7, 8, 5, 6]
WEIGHTS = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)


def equilibrium(density, ux, uy):
    along = DX[:, None, None] * ux + DY[:, None, None] * uy
    square = 1.5 * (ux * ux + uy * uy)
    return WEIGHTS[:, None, None] * density * (1 + 3 * along + 4.5 * along * along - square)


class Rectangle:
    """What one rank has, with a border of one cell."""

    def __init__(self, mesh, rows, columns):
        self.neighbours = []
        for dim in range(2):
            group = mesh.get_group(dim)
            ranks, here = dist.get_process_group_ranks(group), mesh.get_local_rank(dim)
            before, after = ranks[here - 1], ranks[(here + 1) % len(ranks)]
            self.neighbours.append((group, before, after))
        y = torch.arange(rows + 2)[:, None] - 1 + rows * mesh.get_local_rank(0)
        x = torch.arange(columns + 2)[None] - 1 + columns * mesh.get_local_rank(1)
        self.solid = (x - columns // 2).square() + (y - rows).square() < (rows // 5) ** 2
        start = torch.ones(rows + 2, columns + 2)
        self.f = equilibrium(start, 0.08 * start, 0.001 * torch.sin(0.3 * x) * start)

    def exchange(self):
        for dim, (group, before, after) in enumerate(self.neighbours, start=1):
            size = self.f.size(dim)
            low, high = (self.f.narrow(dim, at, 1).contiguous() for at in (1, size - 2))
            from_low, from_high = torch.empty_like(low), torch.empty_like(high)
            sends = [(dist.isend, low, before, 0), (dist.isend, high, after, 1)]
            receives = [(dist.irecv, from_high, after, 0), (dist.irecv, from_low, before, 1)]
            ops = [dist.P2POp(op, t, peer, group, tag) for op, t, peer, tag in receives + sends]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            self.f.narrow(dim, 0, 1).copy_(from_low)
            self.f.narrow(dim, size - 1, 1).copy_(from_high)

    def moments(self):
        density = self.f.sum(0)
        return density, *((self.f * d[:, None, None]).sum(0) / density for d in (DX, DY))

    def advance(self, relaxation=0.6):
        density, ux, uy = self.moments()
        collided = self.f + (equilibrium(density, ux, uy) - self.f) / relaxation
        self.f = torch.where(self.solid, self.f[OPPOSITE], collided)
        self.exchange()
        moved = [self.f[i].roll((int(DY[i]), int(DX[i])), (0, 1)) for i in range(9)]
        self.f = torch.stack(moved)

    def inner(self, field):
        return field[..., 1:-1, 1:-1]


def structure_function(ux, largest=24):
    """Mean squared differences of velocity by distance and direction: a table for the paper."""
    table = torch.zeros(largest, largest)
    for dy in range(largest):
        for dx in range(largest):
            table[dy, dx] = (ux - ux.roll((dy, dx), (0, 1))).square().mean()
    return table


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--columns", type=int, default=96)
    parser.add_argument("--fault", choices=["none", "statistics-each-step"], default="none")
    args = parser.parse_args()
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("y", "x"))
    flow = Rectangle(mesh, args.rows, args.columns)
    before = flow.inner(flow.f).sum().double()
    dist.all_reduce(before)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        schedule=schedule(wait=3, warmup=1, active=6, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(tempfile.mkdtemp() + "/lattice.json"),
    ) as profiler:
        for step in range(12):
            for _ in range(2):
                with record_function("advance"):
                    flow.advance()
            if args.fault == "statistics-each-step" or step == 11:
                with record_function("statistics"):
                    table = structure_function(flow.inner(flow.moments()[1]))
                    dist.all_reduce(table, op=dist.ReduceOp.AVG)
            profiler.step()
    after = flow.inner(flow.f).sum().double()
    dist.all_reduce(after)
    assert torch.isclose(before, after, rtol=1e-3) and table[0, 0] == 0 < table[5, 5]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
