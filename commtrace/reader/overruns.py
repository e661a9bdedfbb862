"""Kernels whose recorded end lies far behind the next kernel's start on their stream.

A stream runs one kernel after the other, and CUDA's traces show it. On ROCm a stalled
profiler stamps the ends of many kernels seconds late (TraceLens, issue 669), so that one
kernel's time holds that of all behind it. Such a kernel ended, at the latest, when the next
began. Ends that are late by less than a millisecond may be true, or noise of the clocks
(tens of ns: roctracer, issue 104), and cost little. Kernels of one launch, a graph's, may
really run at once: they stay as they are.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import Int64
from commtrace.reader.gpu import is_rocm, of_category
from commtrace.reader.json.events import Scan

__all__ = ["Cut", "cut_overruns"]

_FAR_NS = 1_000_000


class Cut(Struct, frozen=True):
    """A scan without overruns: how many kernels were cut, and by how much in all."""

    scan: Scan
    kernels: int = 0
    time_ns: int = 0


def cut_overruns(scan: Scan) -> Cut:
    """End each kernel of a ROCm trace that ends far too late where the next one begins."""
    if not is_rocm(scan):
        return Cut(scan)
    gpu = scan.gpu
    kernels = np.flatnonzero(of_category(gpu, "kernel"))
    order = kernels[np.lexsort((gpu.start_ns[kernels], gpu.stream[kernels], gpu.device[kernels]))]
    now, behind = _neighbours(gpu.device[order], gpu.stream[order], gpu.start_ns[order])
    now, behind = order[now], order[behind]
    over = gpu.start_ns[now] + gpu.duration_ns[now] - gpu.start_ns[behind]
    far = (over > _FAR_NS) & (gpu.correlation[now] != gpu.correlation[behind])
    if not far.any():
        return Cut(scan)
    duration = gpu.duration_ns.copy()
    duration[now[far]] -= over[far]
    calls = tuple(
        structs.replace(call, duration_ns=int(duration[call.gpu_row]))
        if call.gpu_row >= 0
        else call
        for call in scan.calls
    )
    shorter = structs.replace(scan, gpu=structs.replace(gpu, duration_ns=duration), calls=calls)
    return Cut(shorter, int(far.sum()), int(over[far].sum()))


def _neighbours(device: Int64, stream: Int64, start: Int64) -> tuple[Int64, Int64]:
    """Each kernel, and the first on its stream that starts later; all are sorted so."""
    opens = np.flatnonzero(
        np.concatenate(
            ([True], (np.diff(device) != 0) | (np.diff(stream) != 0) | (np.diff(start) != 0))
        )[: start.size]
    )
    following = np.append(opens, start.size)[np.searchsorted(opens, np.arange(start.size), "right")]
    now = np.flatnonzero(following < start.size)
    behind = following[now]
    same = (device[now] == device[behind]) & (stream[now] == stream[behind])
    return now[same], behind[same]
