"""One rank of a recording: ``python -m commtrace.record.worker JOB``, started by ``launch``.

The environment is torchrun's, and says besides to whom the rank reports.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from commtrace.record import conceal, flight, profile, workloads
from commtrace.record.clock import Clock, Reading
from commtrace.record.context import Context
from commtrace.record.job import Job, ranks_share_devices
from commtrace.record.report import LAUNCHER, REPORT_FD, Report
from commtrace.record.watch import watch

__all__ = ["bound_to_launcher", "leave", "main"]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Record this rank, report how it went, and end."""
    job = Job.from_json(sys.argv[1])
    with bound_to_launcher() as report:
        watch(report, job.timeout_s)
        report.done(_record(job, report))


def bound_to_launcher() -> Report:
    """End with the launcher, or when it says so, and report to it."""
    report = Report(int(os.environ.pop(REPORT_FD)), flight.left)
    _end_with(int(os.environ.pop(LAUNCHER)))
    signal.signal(signal.SIGTERM, leave)
    return report


def _record(job: Job, report: Report) -> list[Reading]:
    context = _context(job)
    # Longer than the watch's patience, so that it says what happened.
    dist.init_process_group(job.backend, timeout=timedelta(seconds=2 * job.timeout_s))
    store = dist.distributed_c10d._get_default_store()
    with Clock(context.rank, context.world_size, store, os.environ["MASTER_ADDR"]) as clock:
        workload = _load(Path(job.path))
        state = workload.setup(context, **_arguments(job))
        readings = profile.record_steps(
            lambda: workload.step(state),
            Path(job.folder, f"rank{context.rank}.json.gz"),
            warmup=job.warmup,
            iterations=job.iterations,
            facts=_facts(job),
            report=report,
            clock=clock,
        )
    workload.check(state)
    profile.barrier()  # nobody leaves while another still needs it
    profile.end_group(dist.destroy_process_group)
    return readings


def _context(job: Job) -> Context:
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if job.backend == "nccl":
        shared = torch.cuda.device_count() if ranks_share_devices() else 0
        device = torch.device("cuda", local_rank % shared if shared else local_rank)
        torch.cuda.set_device(device)
    return Context(
        rank=int(os.environ["RANK"]),
        local_rank=local_rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        backend=job.backend,
        device=device,
    )


def _load(path: Path) -> ModuleType:
    sys.path.append(str(path.parent))  # a workload may import what lies beside it
    spec = importlib.util.spec_from_file_location(f"workload_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(job: Job) -> dict[str, Any]:
    types = {s.name: s.type for s in workloads.parse(Path(job.path)).parameters}
    return {
        name: getattr(torch, str(value)) if types[name] == "torch.dtype" else value
        for name, value in job.settings.items()
    }


def _facts(job: Job) -> Mapping[str, Any]:
    settings = conceal.settings(job.settings)
    return {
        **profile.whereabouts(),
        "workload": job.workload,
        "settings": {**settings, "iterations": job.iterations, "warmup": job.warmup},
    }


def _end_with(launcher: int) -> None:
    """Have the kernel end this process with the launcher, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        sys.exit("the launcher is gone")


def leave(number: int, _frame: FrameType | None) -> None:
    """End on a signal, by an exception, so that what was recorded is still saved."""
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
