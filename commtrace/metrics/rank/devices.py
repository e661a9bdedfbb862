"""Where each device's time went: compute, communication, copies, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.intervals import intersect, total
from commtrace.measures import measure
from commtrace.metrics.rank.activity import Work, device_work, device_work_by_step
from commtrace.table import Column, Table

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["DEVICES", "DEVICE_STEPS", "devices"]

_WHERE = (
    Column("rank", "int64", "The rank."),
    Column("device", "category", "torch's name, with the trace's own number: `cuda:0`, `cpu`."),
)
_STEP = Column("step", "int64", "n of the `ProfilerStep#n` that launched the work.")
_TIMES = (
    Column("span_ns", "Int64", "From the first start to the last end of any work.", "ns"),
    Column("compute_ns", "Int64", "While any compute kernel or operator ran.", "ns"),
    Column("communication_ns", "int64", "While any communication ran.", "ns"),
    Column("copy_ns", "Int64", "While any copy or memory fill ran.", "ns"),
    Column("overlapped_communication_ns", "Int64", "Communication during compute.", "ns"),
    Column(
        "exposed_communication_ns",
        "Int64",
        "Communication without compute; with the overlapped it is all communication.",
        "ns",
    ),
    Column("overlap_pct", "float64", "Overlapped share; null without communication.", "percent"),
    Column("idle_ns", "Int64", "The span less the time in which anything ran.", "ns"),
)
DEVICES = Table(
    "devices",
    "one device of one rank. Of the CPU of a rank that also uses a GPU a trace shows only "
    "the communication: the other times are null",
    (*_WHERE, *_TIMES),
)
DEVICE_STEPS = Table(
    "device_steps", "the work that one step launched on one device", (*_WHERE, _STEP, *_TIMES)
)


@measure
def devices(run: Measures, *, by_step: bool = False) -> pd.DataFrame:
    """Where each device's time went, as ``DEVICES``; or per step, as ``DEVICE_STEPS``.

    Times are lengths of unions of intervals on one device, so that nothing counts twice.
    A device is listed if it did any work: a GPU if a kernel or a copy ran there; ``cpu`` if
    communication did, or of a rank without a GPU any operator but calls that enqueue or await
    communication. So a rank whose trace holds no work, or ends before its GPU events, has no
    row. Work that no step launched
    is in no step.
    """
    rows = [
        {
            **where._asdict(),
            **_times(done, run.paused_ns(where.rank, done.start_ns, done.end_ns)),
        }
        for where, done in (device_work_by_step if by_step else device_work)(run).items()
    ]
    return (DEVICE_STEPS if by_step else DEVICES).from_rows(rows)


def _times(work: Work, paused_ns: int) -> dict[str, Any]:
    communication = total(work.communication)
    if work.compute is None:
        unknown = dict.fromkeys(column.name for column in _TIMES)
        return unknown | {"communication_ns": communication}
    span = work.end_ns - work.start_ns - paused_ns
    overlapped = total(intersect(work.communication, work.compute))
    return {
        "span_ns": span,
        "compute_ns": total(work.compute),
        "communication_ns": communication,
        "copy_ns": total(work.copy),
        "overlapped_communication_ns": overlapped,
        "exposed_communication_ns": communication - overlapped,
        "overlap_pct": 100 * overlapped / communication if communication else None,
        "idle_ns": span - total(work.busy),
    }
