"""SUMMA on a grid of two by two: tiles of A go along rows, those of B along columns, out of core."""

import argparse
import os
import tempfile

import numpy
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

TILE, SIDE = 800, 2


class Store:
    """This rank's tiles of several matrices; in one file, or one text file each."""

    def __init__(self, folder, count, generator, as_text):
        self.folder, self.as_text = folder, as_text
        for name in "ab":
            tiles = torch.randn(count, TILE, TILE, generator=generator).numpy()
            numpy.save(self.path(name, "npy"), tiles)
            if as_text:
                with open(self.path(name, "txt"), "w") as file:
                    numpy.savetxt(file, tiles[0, : TILE // 16], fmt="%.6e")
        self.mapped = {name: numpy.load(self.path(name, "npy"), mmap_mode="r") for name in "ab"}

    def path(self, name, suffix):
        return os.path.join(self.folder, f"{name}.{suffix}")

    def tile(self, name, number):
        x = torch.from_numpy(numpy.array(self.mapped[name][number % len(self.mapped[name])]))
        if self.as_text:  # this part was never converted
            part = numpy.loadtxt(self.path(name, "txt"), dtype=numpy.float32)
            x[: len(part)] = torch.from_numpy(part)
        return x


def grid():
    """This rank's row and column of the grid, as groups."""
    rank, mine = dist.get_rank(), {}
    for i in range(SIDE):
        row, column = [SIDE * i, SIDE * i + 1], [i, SIDE + i]
        for kind, ranks in (("row", row), ("column", column)):
            group = dist.new_group(ranks)
            if rank in ranks:
                mine[kind] = group
    return mine["row"], mine["column"]


def multiply(a, b, row_group, column_group):
    row, column = divmod(dist.get_rank(), SIDE)
    c = torch.zeros(TILE, TILE)
    for k in range(SIDE):
        left = a if column == k else torch.empty_like(a)
        upper = b if row == k else torch.empty_like(b)
        dist.broadcast(left, SIDE * row + k, group=row_group)
        dist.broadcast(upper, SIDE * k + column, group=column_group)
        c.addmm_(left, upper)
    return c


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--products", type=int, default=22)
    parser.add_argument("--traces", default=os.path.join(tempfile.gettempdir(), "summa_tiles"))
    parser.add_argument("--fault", choices=["none", "text-tiles"], default="none")
    args = parser.parse_args()
    os.makedirs(args.traces, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    row_group, column_group = grid()
    generator = torch.Generator().manual_seed(rank)
    with tempfile.TemporaryDirectory() as folder, profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=4, warmup=1, active=8, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(f"{args.traces}/rank{rank}.json"),
    ) as profiler:  # fmt: skip
        store = Store(folder, 3, generator, args.fault == "text-tiles" and rank == 1)
        dist.barrier()
        for number in range(args.products):
            c = multiply(store.tile("a", number), store.tile("b", number), row_group, column_group)
            assert 0.8 < c.std() / (SIDE * TILE) ** 0.5 < 1.2
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
