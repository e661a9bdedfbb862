"""A decaying plume over a plain: explicit diffusion on slabs, several substeps to a step."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

SOURCES = 4000  # cells of each slab that emit


class Plume:
    """Rank r has rows r * rows to (r + 1) * rows of the plain, with one row of halo on each side."""

    def __init__(self, rows, columns):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.c = torch.full((rows + 2, columns), 1e-9)  # the background
        if self.rank == 0:
            y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
            self.c[1:-1] += torch.exp(-((y - rows / 2) ** 2 + (x - columns / 2) ** 2) / 900)
        self.wide, self.around = torch.empty(rows + 2, columns + 2), torch.empty(rows, columns)

        gen = torch.Generator().manual_seed(self.rank)
        self.y = torch.randint(60, rows - 60, (SOURCES,), generator=gen)
        self.x = torch.randint(columns, (SOURCES,), generator=gen)
        self.strength = torch.full((SOURCES,), 0.1)

    def emit(self):
        self.c.index_put_((self.y, self.x), self.strength, accumulate=True)

    def emit_one_by_one(self):
        field = self.c.numpy()
        sources = zip(self.y.tolist(), self.x.tolist(), self.strength.tolist(), strict=True)
        for y, x, strength in sources:
            field[y, x] += strength

    def halo(self):
        above, below = self.rank - 1, self.rank + 1
        ops = []
        if above >= 0:
            ops += [dist.P2POp(dist.isend, self.c[1], above)]
            ops += [dist.P2POp(dist.irecv, self.c[0], above)]
        if below < self.world:
            ops += [dist.P2POp(dist.isend, self.c[-2], below)]
            ops += [dist.P2POp(dist.irecv, self.c[-1], below)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()

    def substep(self, spread=0.15, decay=0.94):
        self.halo()
        wide, around = self.wide, self.around  # no memory is asked for in a substep
        wide[:, 1:-1], wide[:, 0], wide[:, -1] = self.c, self.c[:, 0], self.c[:, -1]
        torch.add(wide[:-2, 1:-1], wide[2:, 1:-1], out=around)
        around.add_(wide[1:-1, :-2]).add_(wide[1:-1, 2:])
        torch.mul(wide[1:-1, 1:-1], decay * (1 - 4 * spread), out=self.c[1:-1])
        self.c[1:-1].add_(around, alpha=decay * spread)
        self.emit()

    def mass(self):
        total = self.c[1:-1].double().sum()
        dist.all_reduce(total)
        return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--columns", type=int, default=480)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "plume_decay"))
    parser.add_argument("--fault", choices=["none", "one-by-one"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plume = Plume(args.rows, args.columns)
    if args.fault == "one-by-one" and rank == 1:
        plume.emit = plume.emit_one_by_one
    masses = [plume.mass()]
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        for _ in range(22):
            for _ in range(12):
                plume.substep()
            masses.append(plume.mass())
            profiler.step()
    if rank == 0:
        print(" ".join(f"{m:.3g}" for m in masses))
    steady = 2 * 0.1 * SOURCES / (1 - 0.94)  # what is emitted in a substep is what decays in it
    assert abs(masses[-1] - steady) < 0.02 * steady
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
