"""GPUs that are idle though work is launched, and nothing in the trace says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from commtrace.diagnosis import CannotLook
from commtrace.metrics.rank.timelines import places, timelines
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["HeldUp", "held_up"]

_LEAST_NS = 1_000_000
_WHY = "events are missing, or it waits for something that is not in the trace"
_LOOK = (
    "look at what comes after these gaps (a host callback, a first use, a copy from pageable "
    "memory); record again with all activities"
)
_GRAPHS = "CUDA graphs, whose kernels may not be recorded: it may not be idle"
_TRACE_GRAPHS = (
    "see what these graphs run: record some steps without graphs, or with a profiler that traces "
    "their nodes (nsys --cuda-graph-trace=node)"
)


class HeldUp(Struct, frozen=True):
    """For how long a rank's device is idle so, over 1 ms at a time; in words, and what to do."""

    rank: int
    idle_ns: int
    said: str
    advice: str


def held_up(run: Measures) -> Iterator[HeldUp]:
    """Each rank's only device that is; none where the trace does not tell of launches.

    Beside another device of its process what it waits for may be in the trace.
    """
    try:
        lines = timelines(run)
    except CannotLook:
        return
    devices = Counter(rank for rank, _ in places(run))
    for line in lines:
        held = line.held_up() & (line.idle_ns > _LEAST_NS)
        if devices[line.rank] > 1 or not held.any():
            continue
        idle, graphs = (int(line.idle_ns[some].sum()) for some in (held, held & line.of_graphs()))
        why, advice = _WHY, _LOOK
        if 2 * graphs > idle:
            why, advice = f"{ms(graphs)} of it before or within {_GRAPHS}", _TRACE_GRAPHS
        often = "once" if held.sum() == 1 else f"{held.sum()} times"
        said = (
            f"rank {line.rank}'s {line.device} is idle for {ms(idle)} ({often}, over 1 ms) "
            f"though work is launched: {why}"
        )
        yield HeldUp(line.rank, idle, said, advice)
