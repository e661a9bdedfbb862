"""What each stream did, and which streams were busy at the same time."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from commtrace.intervals import intersect, total
from commtrace.measures import measure
from commtrace.metrics.rank.activity import by_device, stream_activity
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["STREAMS", "STREAM_OVERLAP", "stream_overlap", "streams"]

_WHERE = (
    Column("rank", "int64", "The rank."),
    Column("device", "category", "torch's name, with the trace's own number: `cuda:0`, `cpu`."),
)
STREAMS = Table(
    "streams",
    "one stream of a GPU, or thread of a CPU, that did any work",
    (
        *_WHERE,
        Column("stream", "int64", "The CUDA or HIP stream; on the CPU the thread."),
        Column("kind", "category", "What ran there: `compute`, `communication`, `copy`, `mixed`."),
        Column("events", "int64", "Kernels, copies, operators or collectives.", "events"),
        Column("busy_ns", "int64", "While any of them ran.", "ns"),
    ),
)
STREAM_OVERLAP = Table(
    "stream_overlap",
    "a pair of streams of one device that were busy at the same time; others are not listed",
    (
        *_WHERE,
        Column("stream_a", "int64", "The stream with the lower number."),
        Column("stream_b", "int64", "The other."),
        Column("overlap_ns", "int64", "While both were busy.", "ns"),
    ),
)


@measure
def streams(run: Measures) -> Rows:
    """Every stream that did any work, as ``STREAMS``."""
    return STREAMS.of_dicts(
        [
            {
                "rank": where.rank,
                "device": where.device,
                "stream": where.stream,
                "kind": next(iter(done.events)) if len(done.events) == 1 else "mixed",
                "events": sum(done.events.values()),
                "busy_ns": total(done.busy),
            }
            for where, done in stream_activity(run).items()
        ]
    )


@measure
def stream_overlap(run: Measures) -> Rows:
    """The time that both streams of a pair were busy, as ``STREAM_OVERLAP``."""
    rows: list[dict[str, Any]] = []
    for (rank, device), streams in by_device(stream_activity(run)).items():
        busy = [(where.stream, done.busy) for where, done in streams]
        for (a, busy_a), (b, busy_b) in combinations(busy, 2):
            if overlap := total(intersect(busy_a, busy_b)):
                row = {"rank": rank, "device": device, "stream_a": a, "stream_b": b}
                rows.append(row | {"overlap_ns": overlap})
    return STREAM_OVERLAP.of_dicts(rows)
