"""What ran: the few facts that head a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.analysis import Summary
from commtrace.arrays import NULL, distinct
from commtrace.measures import measure
from commtrace.metrics.rank.activity import device_activity
from commtrace.topology import gpu_names

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Coded

__all__ = ["summary"]


@measure
def summary(run: Measures, name: str) -> Summary:
    """What ran, under the name that the run has."""
    ranks = run.rows("ranks")
    most = int(ranks.ints("world_size").max(initial=NULL))
    world_size = None if most == NULL else most
    present = set(ranks.ints("rank").tolist())
    windows = (ranks.ints(name).tolist() for name in ("rank", "start_ns", "end_ns"))
    spans = [
        end - start - run.paused_ns(rank, start, end)
        for rank, start, end in zip(*windows, strict=True)
        if NULL not in (start, end)
    ]
    step = run.rows("steps").ints("step")
    return Summary(
        name=name,
        world_size=world_size,
        ranks=tuple(sorted(present)),
        missing_ranks=tuple(rank for rank in range(world_size or 0) if rank not in present),
        backends=_names(run.rows("groups").coded("backend"), ranks.coded("backend")),
        devices=tuple(dict.fromkeys(place.device for place in device_activity(run))),
        gpus=gpu_names(run),
        hosts=_names(ranks.coded("host")),
        span_ns=max(spans, default=0),
        steps=distinct(step[step != NULL]).size,
    )


def _names(*columns: Coded) -> tuple[str, ...]:
    return tuple(sorted({name for column in columns for name in column.occurring()}))
