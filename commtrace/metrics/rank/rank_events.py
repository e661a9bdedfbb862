"""What ran on some ranks, all their tables in one form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Int64, distinct
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_ranks
from commtrace.table import Rows
from commtrace.trace_tables import CUT_BEFORE_GPU

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "CALL",
    "COMMUNICATION",
    "COMPUTE",
    "COPY",
    "KINDS",
    "Events",
    "on_gpu",
    "rank_events",
    "without_kernel",
]

KINDS = ("compute", "communication", "copy", "call")
"""What runs; a ``call`` enqueues or awaits communication."""
COMPUTE, COMMUNICATION, COPY, CALL = range(4)
_OF_KERNEL = {"compute": COMPUTE, "communication": COMMUNICATION}
_OF_OPERATOR = {"compute": COMPUTE, "communication": CALL}


class Events(Struct, frozen=True):
    """What ran: ``device`` numbers ``devices``, ``kind`` the KINDS; -1 where that is unknown."""

    devices: tuple[str, ...]
    rank: Int64
    device: Int64
    stream: Int64
    kind: Int64
    step: Int64
    start_ns: Int64
    duration_ns: Int64


@measure
def on_gpu(run: Measures) -> frozenset[int]:
    """The ranks that use a GPU, also where their files broke off before its events."""
    cut = {note.rank for note in run.notes if note.code == CUT_BEFORE_GPU and note.rank is not None}
    return frozenset({*ranks_of(run, "kernels"), *ranks_of(run, "copies"), *cut})


def rank_events(run: Measures, ranks: Sequence[int]) -> Events:
    """What ran on ranks: on their GPUs, or without any the operators that no other calls."""
    tables = ("kernels", "copies", "collectives", "ops", "host_gaps")
    kernels, copies, called, ops, gaps = (rows_of_ranks(run, its, ranks) for its in tables)
    devices: dict[str, int] = {}
    parts = [
        _on_device(kernels, devices, _numbers(kernels, "kind", _OF_KERNEL)),
        _on_device(copies, devices, COPY),
        _on_device(called, devices, COMMUNICATION, np.flatnonzero(without_kernel(called))),
    ]
    called_on = ops.ints("rank")
    working = distinct(called_on[~np.isin(called_on, [*on_gpu(run)])])
    if working.size:
        mine = np.isin(called_on, working)
        parts.append(_on_thread(ops, devices, _numbers(ops, "kind", _OF_OPERATOR)[mine], mine))
        # One that waits for communication within, as of autograd, computes nothing then.
        parts.append(_on_thread(gaps, devices, CALL, np.isin(gaps.ints("rank"), working)))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return Events(tuple(devices), *columns)


def without_kernel(called: Rows) -> Bool:
    """Which rows of ``collectives`` are in no other table: a copy engine's, and the CPU's."""
    copied = called.coded("name").where(lambda name: name.startswith("Memcpy"))
    return np.asarray(called.coded("device").being("cpu") | copied)


def _on_device(
    table: Rows, devices: dict[str, int], kind: Int64 | int, rows: Any = slice(None)
) -> tuple[Int64, ...]:
    known = {name: devices.setdefault(name, len(devices)) for name in table.coded("device").names}
    device, stream = _numbers(table, "device", known)[rows], table.ints("stream")[rows]
    return _columns(table, device, stream, kind, rows)


def _on_thread(
    table: Rows, devices: dict[str, int], kind: Int64 | int, rows: Bool
) -> tuple[Int64, ...]:
    thread = table.ints("thread")[rows]
    cpu = np.full(thread.size, devices.setdefault("cpu", len(devices)))
    return _columns(table, cpu, thread, kind, rows)


def _columns(
    table: Rows, device: Int64, stream: Int64, kind: Int64 | int, rows: Any
) -> tuple[Int64, ...]:
    """Those of ``Events``."""
    rank, *times = (table.ints(name)[rows] for name in ("rank", "step", "start_ns", "duration_ns"))
    return rank, device, stream, np.broadcast_to(kind, device.shape), *times


def _numbers(table: Rows, name: str, known: dict[str, int]) -> Int64:
    column = table.coded(name)
    numbers = np.asarray([*(known.get(one, -1) for one in column.names), -1], np.int64)
    found: Int64 = numbers[column.codes]
    return found
