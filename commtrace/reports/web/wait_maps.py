"""Waits caused and suffered, rank by rank and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import distinct
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.step_waits import step_waits
from commtrace.metrics.run.whole import has_steps
from commtrace.reports.web.blocks import blocks
from commtrace.reports.web.cells import Cell, Ramp, cells
from commtrace.reports.web.markup import Markup, tag
from commtrace.units import clean, duration

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.arrays import Int64

__all__ = ["wait_maps"]

_MOST_RANKS, _MOST_STEPS = 64, 64
_CAUSED = "Caused: how long the others waited for this rank"
_SUFFERED = "Suffered: how long this rank waited for the others"


def wait_maps(analysis: Analysis) -> Markup | None:
    """Two heat maps, rank × step: what each caused, and what it suffered."""
    table = step_waits(analysis.measures)
    caused, suffered = table.ints("caused_wait_ns"), table.ints("wait_ns")
    if not caused.any() and not suffered.any():
        return None
    ranks, steps = (distinct(table.ints(name)).tolist() for name in ("rank", "step"))
    shape = len(ranks), len(steps)
    caused, suffered = caused.reshape(shape), suffered.reshape(shape)
    rows, columns = (
        list(blocks(range(shape[0]), _MOST_RANKS)),
        list(blocks(range(shape[1]), _MOST_STEPS)),
    )
    in_steps = has_steps(analysis.measures)
    names = [_rank_name([ranks[i] for i in part], analysis) for part in rows]
    when = [_range([steps[i] for i in part]) for part in columns]
    merged = [_merged(values, rows, columns) for values in (caused, suffered)]
    maps = [
        _map(_CAUSED, merged[0], names, when, "red", in_steps),
        _map(_SUFFERED, merged[1], names, when, "orange", in_steps),
    ]
    hint = (
        "A row that is strong in every step is a straggler; columns at even distances are a "
        "periodic stall; a band of rows is a slow host."
    )
    if len(rows) < shape[0] or len(columns) < shape[1]:
        hint += " A cell is the longest of its ranks and steps."
    return tag("div", tag("div", *maps, class_="side-by-side"), tag("p", hint, class_="hint"))


def _map(
    title: str,
    values: Int64,
    names: Sequence[str],
    when: Sequence[str],
    ramp: Ramp,
    in_steps: bool,
) -> Markup:
    unit = "step" if in_steps else "tenth of the run"
    found = [
        Cell(
            row,
            column,
            float(values[row, column]),
            f"{names[row]}, {unit} {when[column]}: {duration(int(values[row, column]))}",
        )
        for row in range(values.shape[0])
        for column in range(values.shape[1])
    ]
    most = int(values.max())
    caption = f"{title}. The strongest is {duration(most)} in a {unit}."
    return tag(
        "figure",
        tag("figcaption", caption),
        cells(found, names, when, ramp=ramp, label=caption),
    )


def _merged(
    values: Int64, rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]]
) -> Int64:
    by_row = np.maximum.reduceat(values, [part[0] for part in rows], axis=0)
    longest: Int64 = np.maximum.reduceat(by_row, [part[0] for part in columns], axis=1)
    return longest


def _rank_name(ranks: Sequence[int], analysis: Analysis) -> str:
    """The rank, with its host where there are several."""
    name = f"rank{'s' * (len(ranks) > 1)} {_range(ranks)}"
    if len(analysis.run.hosts) < 2:
        return name
    host = hosts(analysis.measures).get(ranks[0])
    return name if host is None else f"{clean(host, 12)} {name}"


def _range(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}–{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
