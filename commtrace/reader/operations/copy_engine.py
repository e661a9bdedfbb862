"""Collectives that copy engines do: copies between GPUs in a call that runs no kernel.

NCCL with registered buffers gathers like this, and so do symmetric memory's operations of
low contention. Only a copy that the trace says is between GPUs counts: others within a
call may be its own housekeeping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from commtrace import comms
from commtrace.arrays import NULL
from commtrace.reader.gpu import Launched
from commtrace.reader.json.events import Arguments, Call, Scan
from commtrace.reader.nest import Nest

__all__ = ["Copied", "copied"]


class Copied(NamedTuple):
    """All copies of a call as if they were one, the first's launch, what encloses it."""

    copies: Call
    launch_ns: int
    enclosing: list[Call]


def copied(
    scan: Scan, join: Launched, nests: Mapping[int, Nest], worked: Sequence[Call]
) -> Iterator[Copied]:
    """The calls that copied between GPUs, but for those whose work kernels did (``worked``)."""
    done = {id(call) for call in worked}
    found: dict[tuple[int, int], tuple[list[int], list[Call]]] = {}
    for row in _between_gpus(scan):
        launch_ns, thread = int(join.launch_ns[row]), int(join.thread[row])
        nest = nests.get(thread)
        enclosing = nest.around(launch_ns) if nest is not None and launch_ns != NULL else []
        outer = next((call for call in reversed(enclosing) if _is_operation(call)), None)
        if outer is None or any(id(call) in done for call in enclosing):
            continue
        key = (id(outer), int(scan.gpu.device[row]))
        found.setdefault(key, ([], enclosing))[0].append(row)
    for rows, enclosing in found.values():
        yield Copied(_joined(scan, rows), int(join.launch_ns[rows].min()), enclosing)


def _between_gpus(scan: Scan) -> list[int]:
    rows = np.flatnonzero(scan.gpu.name.where(lambda name: name.startswith("Memcpy PtoP")))
    return [*rows.tolist()]


def _is_operation(call: Call) -> bool:
    name = call.args.collective if call.name == "record_param_comms" else call.name
    return comms.canonical_operation(name or "") is not None


def _joined(scan: Scan, rows: list[int]) -> Call:
    gpu = scan.gpu
    first = min(rows, key=lambda row: int(gpu.start_ns[row]))
    start_ns = int(gpu.start_ns[first])
    end_ns = max(int(gpu.start_ns[row] + gpu.duration_ns[row]) for row in rows)
    return Call(
        category="gpu_memcpy",
        name=gpu.name.names[gpu.name.codes[first]],
        thread=int(gpu.stream[first]),
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        args=Arguments(),
        gpu_row=first,
    )
