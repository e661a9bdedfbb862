"""Profiles a window of steps and writes it to one file, with what the profiler does not know."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from isal import igzip
from torch._C import _distributed_c10d

from commtrace.record.clock import Clock, Reading

__all__ = ["METADATA_KEY", "barrier", "export", "record_steps"]

METADATA_KEY = "commtrace"
"""The top-level key of a trace that holds what commtrace adds."""

_FLIGHT_RECORDERS = {"gloo": "_dump_fr_trace_json", "nccl": "_dump_nccl_trace_json"}


def record_steps(
    step: Callable[[], None],
    path: Path,
    *,
    warmup: int,
    iterations: int,
    facts: Mapping[str, Any],
    report: AbstractContextManager[Any],
    clock: Clock,
) -> list[Reading]:
    """Run ``step`` unprofiled, then profiled as ProfilerStep#1 …; write the trace to ``path``.

    All ranks of the default group enter the window together. An exception of ``step`` passes
    through ``report`` at once; then what was recorded until there is written. Returns what
    ``clock`` read before and behind the window.
    """
    readings: list[Reading] = []
    began_ns = 0
    # For the profiler all our warm-up is its one step of warm-up.
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=iterations, repeat=1)
    profiler = torch.profiler.profile(schedule=schedule, record_shapes=True)
    try:
        with profiler, report:
            for _ in range(warmup):
                step()
            readings += clock.read()
            barrier()
            began_ns = time.time_ns()
            profiler.step()
            for _ in range(iterations):
                step()
                profiler.step()
        readings += clock.read()
    finally:
        if began_ns:
            # The launcher may be losing patience: do not leave half a file.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            probed = {"clock_probe": [reading.to_dict() for reading in readings]}
            export(profiler, path, {**facts, **probed, **_communication(began_ns)})
    return readings


def barrier() -> None:
    """Wait for all ranks; NCCL is told on which device, or it would guess and warn."""
    nccl = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[torch.cuda.current_device()] if nccl else None)


def export(profiler: torch.profiler.profile, path: Path, facts: Mapping[str, Any]) -> None:
    """Write a stopped profiler's trace, gzipped, with ``facts`` under the key ``commtrace``."""
    raw = path.with_suffix(".raw")
    profiler.export_chrome_trace(str(raw))
    with raw.open("rb") as trace, igzip.open(path, "wb") as compressed:
        # The profiler takes metadata only while it records, and this is known afterwards.
        trace.seek(trace.read(64).index(b"{") + 1)
        compressed.write(b'{"%s": %s,' % (METADATA_KEY.encode(), json.dumps(facts).encode()))
        shutil.copyfileobj(trace, compressed)
    raw.unlink()


def _communication(since_ns: int) -> dict[str, Any]:
    # The profiler notes the groups when a window opens; those made within it come later.
    groups = getattr(dist.distributed_c10d, "_get_all_pg_configs", None)
    return {
        "flight_recorder": _flight_recorder(since_ns),
        "groups": groups() if groups else None,
    }


def _flight_recorder(since_ns: int) -> dict[str, Any] | None:
    """PyTorch's flight recorder, operations since then; None where there is none or it is off."""
    dump = getattr(_distributed_c10d, _FLIGHT_RECORDERS[dist.get_backend()], None)
    recorded: dict[str, Any] = json.loads(dump()) if dump else {}
    if not recorded.get("entries"):
        return None
    entries = [entry for entry in recorded["entries"] if entry["time_created_ns"] >= since_ns]
    return {**recorded, "entries": entries}
