"""Ranks that were recorded at different times, cut to the time in which all of them were.

As where one alone steps an optimizer: it has a window of steps, the others are recorded whole. What
one did while others were not recorded can be compared with nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import structs

from commtrace.arrays import NULL, Bool, distinct
from commtrace.diagnosis import Note
from commtrace.packed import PackedColumns, pack
from commtrace.reader.recordings import host, window
from commtrace.table import Columns
from commtrace.trace import RankTrace
from commtrace.trace_tables import RECORDED_APART
from commtrace.units import ms

__all__ = ["in_common_time"]

_MOSTLY, _NEARLY = 0.5, 0.95  # of the longest recording
_Window = tuple[int, int]


def in_common_time(
    parts: Sequence[RankTrace], *, stepless: bool = False
) -> tuple[list[RankTrace], list[Note]]:
    """The parts, cut to what all have in common if that is less than half of the longest; a note.

    Of one host only, whose ranks have one clock, and where some steps are within that time whole.
    A ``stepless`` run's parts are cut whatever they have in common.
    """
    windows = {part.rank: when for part in parts if (when := window(part))}
    hosts = {host(part) for part in parts}
    if len(windows) < len(parts) or len(parts) < 2 or len(hosts) > 1 or None in hosts:
        return list(parts), []
    lasts = {rank: end - start for rank, (start, end) in windows.items()}
    longest = max(lasts, key=lambda rank: lasts[rank])
    common = max(start for start, _ in windows.values()), min(end for _, end in windows.values())
    together = common[1] - common[0]
    apart = together < _MOSTLY * lasts[longest]
    apart &= any(_whole(part, common).any() for part in parts)
    if together <= 0 or not (apart or stepless):
        return list(parts), []
    shortest = min(lasts, key=lambda rank: lasts[rank])
    message = (
        f"ranks were recorded at different times, rank {longest} for {ms(lasts[longest])}, rank "
        f"{shortest} for {ms(lasts[shortest])}: what is analysed are the {ms(together)} that all "
        "have in common. Mark the same steps on every rank, also where no optimizer steps: call "
        "commtrace.step() once in each round"
    )
    cut = [_cut(part, common) for part in parts]
    return cut, [Note(RECORDED_APART, message)] if together < _NEARLY * lasts[longest] else []


def _whole(part: RankTrace, common: _Window) -> Bool:
    """Which rows of ``steps`` are the profiler's and within that time from begin to end."""
    steps: Any = part.columns["steps"]
    start, duration = steps["start_ns"], steps["duration_ns"]
    within: Bool = (start >= common[0]) & (start + duration <= common[1])
    within &= steps["label"].codes < 0
    return within


def _cut(part: RankTrace, common: _Window) -> RankTrace:
    """What ends within that time, from where that begins on; steps that it cuts are none."""
    steps: Any = part.columns["steps"]
    known = distinct(steps["step"][_whole(part, common)])
    columns = {
        name: _within(its, common, known) if "duration_ns" in its else its
        for name, its in part.columns.items()
    }
    ranks: Any = part.columns["ranks"]
    columns["ranks"] = {
        **ranks,
        "start_ns": ranks["start_ns"].clip(min=common[0]),
        "end_ns": ranks["end_ns"].clip(max=common[1]),
    }
    return structs.replace(part, columns=columns, measured={})


def _within(its: Any, common: _Window, known: Any) -> Columns:
    start, label = its["start_ns"], its.get("label")
    end = start + its["duration_ns"]
    keep = (end > common[0]) & (end <= common[1])
    step = np.where(np.isin(its["step"], known), its["step"], NULL)
    if label is not None:
        keep &= (label.codes >= 0) | (step != NULL)
    begun = start.clip(min=common[0])
    changed = {"start_ns": begun, "duration_ns": end - begun, "step": step}
    if "launch_ns" in its:
        launch = its["launch_ns"]
        changed["launch_ns"] = np.where(launch == NULL, NULL, launch.clip(min=common[0]))
    rows = np.flatnonzero(keep)
    kept = {name: values.take(rows) for name, values in {**its, **changed}.items()}
    return pack(kept) if isinstance(its, PackedColumns) else kept
