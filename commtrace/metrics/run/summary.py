"""What ran: the few facts that head a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.analysis import Summary
from commtrace.measures import measure
from commtrace.metrics.rank.activity import device_work

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["summary"]


@measure
def summary(run: Measures, name: str) -> Summary:
    """What ran, under the name that the run has."""
    ranks = run.ranks
    sizes = ranks["world_size"].dropna()
    world_size = int(sizes.max()) if len(sizes) else None
    present = set(ranks["rank"].tolist())
    windows = ranks[["rank", "start_ns", "end_ns"]].dropna().astype("int64")
    spans = [
        end - start - run.paused_ns(rank, start, end)
        for rank, start, end in windows.itertuples(index=False)
    ]
    return Summary(
        name=name,
        world_size=world_size,
        ranks=tuple(sorted(present)),
        missing_ranks=tuple(rank for rank in range(world_size or 0) if rank not in present),
        backends=_names(run.groups["backend"], ranks["backend"]),
        devices=tuple(dict.fromkeys(place.device for place in device_work(run))),
        hosts=_names(ranks["host"]),
        span_ns=max(spans, default=0),
        steps=int(run.steps["step"].nunique()),
    )


def _names(*columns: pd.Series[Any]) -> tuple[str, ...]:
    return tuple(sorted({str(name) for column in columns for name in column.dropna()}))
