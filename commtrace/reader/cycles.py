"""The files of ranks that were recorded several times, one behind the other, put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.arrays import NULL, Int64, codes, distinct, first_rows, least, most, sums
from commtrace.reader.recordings import window, with_steps
from commtrace.table import Rows
from commtrace.trace import RankTrace

__all__ = ["one_row_each", "pauses", "with_own_steps"]

_NEVER = np.iinfo(np.int64).max


def with_own_steps(parts: Sequence[RankTrace]) -> list[RankTrace]:
    """The parts, with step numbers that no two cycles share.

    A profiler counts on from cycle to cycle; one that is made anew for each counts from 0.
    """
    cycles = _cycles(parts)
    steps = [
        {n for part in parts if cycles[part.file] == cycle for n in _steps(part)}
        for cycle in range(1 + max(cycles.values()))
    ]
    if len(set().union(*steps)) == sum(map(len, steps)):
        return list(parts)
    lengths = [1 + max(numbers, default=-1) for numbers in steps]
    first = np.concatenate(([0], np.cumsum(lengths))).tolist()

    def later(part: RankTrace) -> Callable[[Int64], Int64]:
        return lambda step: np.where(step == NULL, NULL, step + first[cycles[part.file]])

    return [with_steps(part, later(part)) for part in parts]


def pauses(parts: Sequence[RankTrace]) -> dict[int, tuple[tuple[int, int], ...]]:
    """The times between a rank's files, in which nothing was recorded."""
    windows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for part in parts:
        if when := window(part):
            windows[part.rank].append(when)
    return {
        rank: tuple((a[1], b[0]) for a, b in pairwise(its))
        for rank, its in windows.items()
        if len(its) > 1
    }


def one_row_each(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with one row per rank, and per group of a rank, whatever its files."""
    ranks, groups = tables["ranks"], tables["groups"]
    number = codes(ranks.ints("rank"))
    first = first_rows(number)
    start_ns = ranks.ints("start_ns")
    starts = least(number, np.where(start_ns == NULL, _NEVER, start_ns), first.size)
    together = {
        "start_ns": np.where(starts == _NEVER, NULL, starts),
        "end_ns": most(number, ranks.ints("end_ns"), first.size),
        "events": sums(number, ranks.ints("events"), first.size),
    }
    return {
        **tables,
        "ranks": Rows(ranks.table, {**ranks.take(first).columns, **together}),
        "groups": groups.take(first_rows(codes(*groups.columns.values()))),
    }


def _cycles(parts: Sequence[RankTrace]) -> dict[Path, int]:
    """The cycle that each part is of: a new one begins where a rank comes again."""
    cycle, ranks = 0, set[int]()
    cycles = {}
    for part in sorted(parts, key=lambda part: window(part) or (0, 0)):
        if part.rank in ranks:
            cycle, ranks = cycle + 1, set()
        ranks.add(part.rank)
        cycles[part.file] = cycle
    return cycles


def _steps(part: RankTrace) -> set[int]:
    found: Any = part.columns["steps"]["step"]
    return set(distinct(found).tolist()) - {NULL}
