"""One rank of ``timed`` without commtrace: ``torchrun … -m benchmarks.recorded.unrecorded HOW``.

HOW is ``plain`` or ``profiler``: torch.profiler with the schedule and settings of ``record``.
Steps are marked for commtrace, too, for ``record --``; outside of that nobody listens.
"""

from __future__ import annotations

import contextlib
import os
import sys

import torch
import torch.distributed as dist

import commtrace
from benchmarks.recorded.workloads import timed
from commtrace.record.context import Context


def main() -> None:
    """Run as many steps as a recording does, and print their times."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    device = torch.device("cpu")
    state = timed.setup(Context(rank, rank, dist.get_world_size(), "gloo", device))
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=timed.ITERATIONS, repeat=1)
    profiled = sys.argv[1] == "profiler"
    profiler = torch.profiler.profile(schedule=schedule, record_shapes=True)
    with profiler if profiled else contextlib.nullcontext():
        for _ in range(timed.WARMUP):
            timed.step(state)
            commtrace.step()
        dist.barrier()
        for _ in range(timed.ITERATIONS):
            if profiled:
                profiler.step()
            timed.step(state)
            commtrace.step()
    if rank == int(os.environ["WORLD_SIZE"]) - 1:
        timed.check(state)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
