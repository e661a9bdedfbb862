"""What one rank did: steps, the lines of its program, GPU streams, host threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.arrays import integers
from commtrace.metrics.rank.rows_of import places_of_rank
from commtrace.metrics.run.line_looks import line_looks
from commtrace.metrics.run.run_clock import on_run
from commtrace.table import rows
from commtrace.viewer.slices import Slice, Timeline, apart, draw, nested

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["draw_lines", "draw_steps", "draw_streams", "draw_threads"]

_NEAR_NS = 1_000_000  # what looks at one line leave between them


def draw_steps(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """The profiler's steps, and the program's labels within them."""
    mine = _of_rank(run, "steps", rank)
    step = "ProfilerStep#" + mine["step"].astype("string")
    names = mine["label"].astype(object).where(mine["label"].notna(), step)
    table = mine.assign(name=names)
    threads = sorted(set(table["thread"].tolist()))
    for thread in threads:
        its = table[table["thread"] == thread]
        track = f"{name} thread {thread} steps" if len(threads) > 1 else f"{name} steps"
        _draw_nested(run, timeline, track, rank, parent, its, ["step"])


def draw_lines(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """Where in the program its thread was, as the recorder looked at it: a slice for each line."""
    its = line_looks(run, rank)
    if its is None or not its.at_ns.size:
        return
    end = on_run(run, rank, its.at_ns)
    start = np.maximum(end - 1000 * its.passed_us, np.append(0, end[:-1]))
    goes_on = (its.line[1:] == its.line[:-1]) & (start[1:] - end[:-1] < _NEAR_NS)
    first = np.flatnonzero(np.append(True, ~goes_on))
    last = np.append(first[1:], end.size) - 1
    track = timeline.track(f"{name} lines of the program", parent)
    timeline.slices(
        track,
        [
            Slice(since, until, its.names[line])
            for since, until, line in zip(
                start[first].tolist(), end[last].tolist(), its.line[first].tolist(), strict=True
            )
        ],
    )


def draw_streams(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """Kernels, copies and fills of each stream of each device."""
    kernels, copies = (_of_rank(run, table, rank) for table in ("kernels", "copies"))
    devices = {*kernels["device"].dropna(), *copies["device"].dropna()}
    for device in sorted(devices, key=lambda name: (len(name), name)):
        above = timeline.track(str(device), parent)
        its_kernels = kernels[kernels["device"] == device]
        its_copies = copies[copies["device"] == device]
        streams = {*its_kernels["stream"].tolist(), *its_copies["stream"].tolist()}
        for stream in sorted(streams):
            mine = [
                *_kernels(run, rank, its_kernels[its_kernels["stream"] == stream]),
                *_copies(run, rank, its_copies[its_copies["stream"] == stream]),
            ]
            mine.sort(key=lambda its: (its.start_ns, its.end_ns))
            start, end = (
                np.array([its[which] for its in mine], dtype=np.int64) for which in (0, 1)
            )
            track = f"{name} {device} stream {stream}"
            draw(timeline, track, above, [(its,) for its in mine], apart(start, end))


def draw_threads(run: Measures, timeline: Timeline, name: str, rank: int, parent: int) -> None:
    """The host's outermost operators, and the calls that can block it."""
    ops, calls = (_of_rank(run, table, rank) for table in ("ops", "blocking_calls"))
    columns = ["name", "thread", "step", "start_ns", "duration_ns"]
    for thread in sorted({*ops["thread"].tolist(), *calls["thread"].tolist()}):
        both = [
            table.loc[table["thread"] == thread, columns].astype({"name": object})
            for table in (ops, calls)
        ]
        parts = [part for part in both if len(part)]
        table = parts[0] if len(parts) == 1 else _stacked(parts)
        _draw_nested(run, timeline, f"{name} thread {thread}", rank, parent, table, ["step"])


def _of_rank(run: Measures, table: str, rank: int) -> pd.DataFrame:
    return run.rows(table, places_of_rank(run, table, rank)).frame()


def _stacked(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts)


def _draw_nested(
    run: Measures,
    timeline: Timeline,
    track: str,
    rank: int,
    parent: int,
    table: pd.DataFrame,
    args: list[str],
) -> None:
    start, end = _times(run, rank, table)
    order = np.lexsort((-end, start))
    values = rows(table[["name", *args]].iloc[order])
    start, end = start[order], end[order]
    drawn = [
        (Slice(since, until, str(row.pop("name")), row),)
        for since, until, row in zip(start.tolist(), end.tolist(), values, strict=True)
    ]
    draw(timeline, track, parent, drawn, nested(start, end))


def _kernels(run: Measures, rank: int, mine: pd.DataFrame) -> list[Slice]:
    start, end = _times(run, rank, mine)
    args = rows(mine[["step", "correlation"]])
    names = mine["name"].astype(object).tolist()
    return [
        Slice(since, until, str(name), row)
        for since, until, name, row in zip(start.tolist(), end.tolist(), names, args, strict=True)
    ]


def _copies(run: Measures, rank: int, mine: pd.DataFrame) -> list[Slice]:
    start, end = _times(run, rank, mine)
    columns = ["kind", "source", "destination", "memory", "size_bytes", "step", "correlation"]
    made = []
    for since, until, row in zip(start.tolist(), end.tolist(), rows(mine[columns]), strict=True):
        kind = row.pop("kind")
        size, nothing = row["size_bytes"], until == since
        rate: dict[str, Any] = {"gb_s": None if size is None or nothing else size / (until - since)}
        made.append(Slice(since, until, kind if kind == "Memset" else f"copy {kind}", row | rate))
    return made


def _times(run: Measures, rank: int, table: pd.DataFrame) -> tuple[Any, Any]:
    start = integers(table["start_ns"])
    end = start + integers(table["duration_ns"])
    return on_run(run, rank, start), on_run(run, rank, end)
