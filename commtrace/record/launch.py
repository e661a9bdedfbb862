"""Starts one process per rank of a workload and makes them one recording."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from commtrace.errors import UsageError
from commtrace.record import conceal, without, workloads
from commtrace.record.environment import cuda_devices
from commtrace.record.folder import new_folder
from commtrace.record.job import Backend, Job, ranks_share_devices
from commtrace.record.nodes import Place
from commtrace.record.session import Session

__all__ = ["TIMEOUT_S", "record"]

TIMEOUT_S = 60.0
"""After this long in one operation a workload's rank has hung."""


def record(
    workload: str,
    *,
    settings: Mapping[str, str] | None = None,
    world_size: int | None = None,
    backend: str | None = None,
    out: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    place: Place | None = None,
) -> Path:
    """Record a workload on this host: one process and one trace file per rank, and a manifest.

    ``workload`` is a shipped one's name or a Python file's path; ``settings`` maps names to
    texts, as ``--set`` does. Without ``backend`` it is NCCL if there is a CUDA device per
    rank, else gloo; without ``out`` the folder is ``traces/NAME/BACKEND-N``, with a number
    behind it if that exists. Returns the folder. What a rank prints is kept in ``rank{r}.log``.
    Of several nodes ``place`` says which this is; ``world_size`` counts its ranks alone.

    Raises UsageError before anything is started, or when the workload refuses the machine or
    its settings; RecordError, which names the rank, when one fails or waits ``timeout_s`` in
    one operation: what traces could be saved are kept. Interrupted by Ctrl-C and SIGTERM.
    """
    plan = workloads.parse(workloads.find(workload))
    values = plan.values(settings or {})
    without.check()
    where = place or Place()
    chosen, n = _where(backend, plan.world_size if world_size is None else world_size)
    folder = new_folder(out, Path("traces", plan.name, where.subfolder(f"{chosen}-{n}")))
    job = Job(
        workload=plan.name,
        path=str(plan.path),
        iterations=int(values.pop("iterations")),
        warmup=int(values.pop("warmup")),
        settings=values,
        backend=chosen,
        folder=str(folder.path.resolve()),
        timeout_s=timeout_s,
    )
    Session(
        command=(sys.executable, "-u", "-m", "commtrace.record.worker", job.to_json()),
        folder=folder,
        ranks=n,
        what={
            "workload": {
                "name": plan.name,
                "question": plan.question,
                "answer": list(plan.answer),
                "settings": conceal.settings(values),
            },
            "iterations": job.iterations,
            "warmup": job.warmup,
        },
        backend=chosen,
        place=where,
        timeout_s=timeout_s,
    ).run()
    return folder.path


def _where(backend: str | None, world_size: int | None) -> tuple[Backend, int]:
    """The backend and the number of ranks, where not given as the machine suggests."""
    if world_size is not None and world_size < 1:
        raise UsageError(f"world size: at least 1, not {world_size}")
    if backend not in (None, "gloo", "nccl"):
        raise UsageError(f"no backend {backend!r}; there are gloo and nccl")
    devices = cuda_devices()
    if backend == "gloo" or (backend is None and devices < (world_size or 2)):
        return "gloo", world_size or 4
    if devices < (1 if ranks_share_devices() else world_size or 1):
        raise UsageError(
            f"nccl needs a CUDA device per rank: {world_size or 1} wanted, {devices} here; "
            "use --backend gloo, fewer ranks with -n, or NCCL 2.30 or later with "
            "NCCL_MULTI_RANK_GPU_ENABLE=1"
        )
    return "nccl", world_size or devices
