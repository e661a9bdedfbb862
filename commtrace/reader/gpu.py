"""GPU events -> the tables of kernels and copies."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import partial

import numpy as np
from msgspec import Struct

from commtrace import kernels as communication
from commtrace.arrays import NULL, Bool, Int64
from commtrace.reader.correlation import rows_with, values_at
from commtrace.reader.host import Steps
from commtrace.reader.json.events import Gpu, Scan
from commtrace.table import Coded, Columns

__all__ = [
    "Launched",
    "copies",
    "device_names",
    "is_rocm",
    "kernels",
    "launched",
    "named",
    "of_category",
    "selected",
    "unknown",
]

_EARLY_NS = 10_000
_HOST = -1

_CUDA_NAME = re.compile(r"(?<![A-Za-z])([HDAP])to([HDAP])(?![A-Za-z])")
_XPU_NAME = r"(?<![A-Za-z])([HDM])2([HDM])(?![A-Za-z])"  # compiled when it is first met
_ROCM_NAME = r"Copy(Host|Device)To(Host|Device)"
_MEMORY = re.compile(r"\((\w+) -> (\w+)\)")


class _Side(Enum):
    """Where one end of a copy lies."""

    HOST = "host"
    DEVICE = "the device that the event is on"
    PEER = "the device that the event names"
    UNKNOWN = "unknown"


_SIDES = {"H": _Side.HOST, "D": _Side.DEVICE, "P": _Side.PEER}


class _Route(Struct, frozen=True):
    """Kind, ends and host memory of a copy."""

    kind: str | None
    source: _Side
    destination: _Side
    memory: str | None = None


_FILL = _Route("Memset", _Side.UNKNOWN, _Side.DEVICE)
_NO_ROUTE = _Route(None, _Side.UNKNOWN, _Side.UNKNOWN)


class Launched(Struct, frozen=True):
    """For each GPU event the host's launch (NULL where there is none), and its step.

    The step is the one that launched it: where the launch is lost, so is the step. A trace
    without any launch has only the steps in which events ran.
    """

    launch_ns: Int64
    thread: Int64
    step: Int64
    orphans: int
    premature: int


def launched(scan: Scan, steps: Steps) -> Launched:
    """Join GPU events to their launches by correlation."""
    gpu, launches = scan.gpu, scan.launches
    at = rows_with(gpu.correlation, launches.correlation, launches.start_ns)
    found = at >= 0
    launch_ns, thread = values_at(launches.start_ns, at), values_at(launches.thread, at)
    lost = ~found & (gpu.correlation > 0) & of_category(gpu, "kernel")
    return Launched(
        launch_ns,
        thread,
        steps.containing(launch_ns if launches.start_ns.size else gpu.start_ns),
        orphans=int(lost.sum()) if launches.correlation.size else 0,
        premature=int((found & (gpu.start_ns < launch_ns - _EARLY_NS)).sum()),
    )


def kernels(scan: Scan, join: Launched, rank: int) -> Columns:
    """The table of kernels."""
    gpu = scan.gpu
    rows = np.flatnonzero(of_category(gpu, "kernel"))
    communicates = named(gpu.name, communication.is_communication)
    kernels_of_calls = [call.gpu_row for call in scan.calls if call.gpu_row >= 0]
    communicates[np.asarray(kernels_of_calls, dtype=np.int64)] = True
    return {
        "rank": np.full(rows.size, rank),
        "device": device_names(gpu.device[rows], scan.device_type),
        "stream": gpu.stream[rows],
        "name": selected(gpu.name, rows),
        "kind": Coded(communicates[rows].astype(np.int32), ("compute", "communication")),
        "start_ns": gpu.start_ns[rows],
        "duration_ns": gpu.duration_ns[rows],
        "launch_ns": join.launch_ns[rows],
        "thread": join.thread[rows],
        "correlation": gpu.correlation[rows],
        "step": join.step[rows],
    }


def copies(scan: Scan, join: Launched, rank: int) -> Columns:
    """The table of copies and fills; kind is null for a name that tells no direction."""
    gpu = scan.gpu
    filled = of_category(gpu, "gpu_memset")
    rows = np.flatnonzero(filled | of_category(gpu, "gpu_memcpy"))
    names = selected(gpu.name, rows)
    routes = [*(_route(name, is_rocm(scan)) for name in names.names), _FILL, _NO_ROUTE]
    at = np.where(filled[rows], len(names.names), names.codes)  # -1, null, is the last
    device = gpu.device[rows]
    ends = partial(_ends, of_type=scan.device_type)
    from_device = np.where(gpu.from_device[rows] == NULL, device, gpu.from_device[rows])
    return {
        "rank": np.full(rows.size, rank),
        "device": device_names(device, scan.device_type),
        "stream": gpu.stream[rows],
        "kind": _picked([route.kind for route in routes], at),
        "source": ends([route.source for route in routes], at, device, from_device),
        "destination": ends(
            [route.destination for route in routes], at, device, gpu.to_device[rows]
        ),
        "memory": _picked([route.memory for route in routes], at),
        "size_bytes": gpu.size_bytes[rows],
        "start_ns": gpu.start_ns[rows],
        "duration_ns": gpu.duration_ns[rows],
        "launch_ns": join.launch_ns[rows],
        "thread": join.thread[rows],
        "correlation": gpu.correlation[rows],
        "step": join.step[rows],
    }


def unknown(table: Columns) -> int:
    """How many copies of the table have no known direction."""
    kind = table["kind"]
    return int((kind.codes < 0).sum()) if isinstance(kind, Coded) else 0


def device_names(devices: Int64, of_type: str) -> Coded:
    """Torch's names of the numbers of devices of a type: -1 is the host, NULL is null."""
    numbers, codes = np.unique(devices, return_inverse=True)
    names = ["host" if n == _HOST else f"{of_type}:{n}" for n in numbers.tolist()]
    found = np.asarray(codes.reshape(-1), dtype=np.int32)
    if numbers.size and numbers[0] == NULL:
        return Coded(found - np.int32(1), tuple(names[1:]))
    return Coded(found, tuple(names))


def _picked(values: list[str | None], at: Int64) -> Coded:
    distinct = Coded.of(values)
    return Coded(distinct.codes[at], distinct.names)


def _ends(sides: list[_Side], at: Int64, device: Int64, peer: Int64, of_type: str) -> Coded:
    """Names of one end of each copy, given which side of it that is."""
    side = np.asarray([list(_Side).index(s) for s in sides])[at]
    host, unknown = np.full_like(device, _HOST), np.full_like(device, NULL)
    return device_names(np.choose(side, (host, device, peer, unknown)), of_type)


def _route(name: str, rocm: bool) -> _Route:
    """What a copy's name tells. CUDA arrays (A) lie on the device."""
    if match := _CUDA_NAME.search(name):
        source, destination = match[1].replace("A", "D"), match[2].replace("A", "D")
    elif match := re.search(_XPU_NAME, name):  # M is memory of the host that the driver did not map
        source, destination = match[1].replace("M", "H"), match[2].replace("M", "H")
    elif match := re.search(_ROCM_NAME, name):
        source, destination = match[1][0], match[2][0]
    else:
        return _NO_ROUTE
    if rocm and source == destination == "D":
        # A copy between two GPUs is recorded as DtoD too.
        return _Route("DtoD", _Side.UNKNOWN, _Side.UNKNOWN)
    return _Route(f"{source}to{destination}", _SIDES[source], _SIDES[destination], _memory(name))


def _memory(name: str) -> str | None:
    ends = _MEMORY.search(name)
    known = {end.lower() for end in ends.groups()} & {"pageable", "pinned"} if ends else set()
    return known.pop() if len(known) == 1 else None


def is_rocm(scan: Scan) -> bool:
    """Whether the trace is of AMD GPUs, which it never says but for the versions it names."""
    return any("hip" in key or "roctracer" in key for key in scan.metadata)


def of_category(gpu: Gpu, name: str) -> Bool:
    """Which GPU events are of a category: ``kernel``, ``gpu_memcpy`` or ``gpu_memset``."""
    return named(gpu.category, lambda other: other == name)


def named(names: Coded, test: Callable[[str], bool]) -> Bool:
    """Which rows' name passes a test, run once for each distinct name; null passes none."""
    passes = np.asarray([*map(test, names.names), False], dtype=np.bool_)
    selected: Bool = passes[names.codes]
    return selected


def selected(names: Coded, rows: Int64) -> Coded:
    """Some rows of a column of names, without the names that none of them has."""
    used, codes = np.unique(names.codes[rows], return_inverse=True)
    kept = tuple(names.names[code] for code in used.tolist() if code >= 0)
    shift = 1 if used.size and used[0] < 0 else 0
    return Coded((codes.reshape(-1) - shift).astype(np.int32), kept)
