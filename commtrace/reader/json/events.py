"""What a scan of one file hands on: columns for the many events, structs for the few.

``scan`` makes it from bytes, ``kineto`` turns it into tables; neither knows the other.
All times are integer Unix nanoseconds, ``baseTimeNanoseconds`` already added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.diagnosis import Note
from commtrace.table import Coded

__all__ = [
    "NONE",
    "Arguments",
    "Call",
    "Gpu",
    "Hosted",
    "Launches",
    "Scan",
    "Synchronisations",
]


class Arguments(
    Struct,
    frozen=True,
    gc=False,
    rename={
        "collective": "Collective name",
        "in_elements": "In msg nelems",
        "out_elements": "Out msg nelems",
        "group_size": "Group size",
        "dtype": "dtype",
        "group": "Process Group Name",
        "group_id": "Process Group ID",
        "group_description": "Process Group Description",
        "group_ranks": "Process Group Ranks",
        "rank": "Rank",
        "rank_start": "Global rank start",
        "rank_stride": "Global rank stride",
        "seq": "Seq",
        "comms_id": "Comms Id",
        "source": "Src Rank",
        "destination": "Dst Rank",
        "asynchronous": "Is asynchronized op",
        "dims": "Input Dims",
        "old_dims": "Input dims",
        "types": "Input type",
        "inputs": "Concrete Inputs",
        "index": "Ev Idx",
    },
):
    """The arguments of a communication event, as the trace spells them; None where absent.

    ``index`` counts the events that the profiler kept of the host. ``old_dims`` are ``dims`` as
    Kineto wrote them before 2021, until `of_today` puts them there.
    """

    collective: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None
    group: str | int | None = None
    group_id: str | int | None = None
    group_description: str | None = None
    group_ranks: str | list[int] | None = None
    rank: int | None = None
    rank_start: int | None = None
    rank_stride: int | None = None
    seq: int | None = None
    comms_id: str | int | None = None
    source: int | None = None
    destination: int | None = None
    asynchronous: int | bool | None = None
    dims: Any = None
    old_dims: Any = None
    types: Any = None
    inputs: Any = None
    index: Any = None


class Call(Struct, frozen=True, gc=False):
    """One communication event on the host or on a GPU, with its arguments.

    ``category`` is ``kernel``, ``cpu_op`` or ``user_annotation``; ``thread`` the event's
    tid (a kernel's stream); ``gpu_row`` a kernel's row in ``Scan.gpu``, else -1.
    """

    category: str
    name: str
    thread: int
    start_ns: int
    duration_ns: int
    args: Arguments
    gpu_row: int = -1


class Gpu(Struct, frozen=True):
    """GPU events: kernels, copies, fills. Integers are ``schema.NULL`` where absent.

    ``category`` holds ``kernel``, ``gpu_memcpy`` and ``gpu_memset`` whatever the file's
    age calls them; ``device`` is the argument (``inDevice`` of a copy between GPUs: the one
    whose stream ran it, which may be its source or its destination), or the event's pid
    without one.
    """

    category: Coded
    name: Coded
    device: Int64
    stream: Int64
    start_ns: Int64
    duration_ns: Int64
    correlation: Int64
    size_bytes: Int64
    from_device: Int64
    to_device: Int64


class Launches(Struct, frozen=True):
    """Runtime and driver calls that carry a correlation."""

    name: Coded
    correlation: Int64
    thread: Int64
    start_ns: Int64
    duration_ns: Int64


class Synchronisations(Struct, frozen=True):
    """What waited for the GPU: events of category ``cuda_sync``.

    ``name`` is ``Context Sync``, ``Stream Sync``, ``Event Sync`` or ``Stream Wait Event``;
    ``stream`` waits, or is waited for in a ``Stream Sync``. Of an event that is waited for:
    ``event`` is its id, ``awaited_stream`` where it was recorded, ``record_correlation`` the
    call that did. Integers are ``schema.NULL`` where absent or -1.
    """

    name: Coded
    device: Int64
    stream: Int64
    correlation: Int64
    event: Int64
    awaited_stream: Int64
    record_correlation: Int64
    start_ns: Int64
    duration_ns: Int64


class Hosted(Struct, frozen=True):
    """Events on host threads that need no arguments: operators, or annotations."""

    name: Coded
    thread: Int64
    start_ns: Int64
    duration_ns: Int64


NONE = Hosted(Coded.of([]), *(np.empty(0, np.int64) for _ in range(3)))
"""Of no events."""


class Scan(Struct, frozen=True):
    """One file, read.

    ``operators`` holds every ``cpu_op`` where the file has no GPU event, and is empty
    otherwise; ``beside_gpu`` those that no others enclose, where it has some;
    ``annotations`` every ``user_annotation``; ``calls`` the communication:
    kernels, ``c10d`` operators, ``record_param_comms``, annotations ``nccl:*`` and
    ``gloo:*``, in the file's order. ``metadata`` is the file's top level without
    ``traceEvents``; ``events`` counts the file's events, kept or not; ``device_type`` is torch's
    name of the devices.
    """

    file: str
    metadata: dict[str, Any]
    gpu: Gpu
    launches: Launches
    synchronisations: Synchronisations
    operators: Hosted
    beside_gpu: Hosted
    annotations: Hosted
    calls: tuple[Call, ...]
    events: int
    notes: tuple[Note, ...] = ()
    device_type: str = "cuda"
