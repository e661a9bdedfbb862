"""Matrices and heat maps: overlap of streams, copies between devices, waits of ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from commtrace.arrays import distinct
from commtrace.plots.figure import figure, nothing, short, tick_distance
from commtrace.units import rate

__all__ = ["copy_matrix", "overlap_matrix", "wait_map"]

_MOST_NUMBERS = 16  # rows or columns: of more, no numbers are written into the cells


def overlap_matrix(overlaps: pd.DataFrame, rank: int, *, ax: Axes | None = None) -> Axes:
    """How long each two streams of a rank were busy at once, in ms.

    ``overlaps`` has the columns of the measure ``stream_overlap``.
    """
    mine = overlaps[overlaps["rank"] == rank]
    if mine.empty:
        return nothing(ax, f"no two streams of rank {rank} were busy at once")
    pairs = mine[["stream_a", "stream_b"]].to_numpy()
    streams = distinct(pairs)
    values = np.full((streams.size, streams.size), np.nan)
    at = np.searchsorted(streams, pairs)
    values[at[:, 0], at[:, 1]] = values[at[:, 1], at[:, 0]] = mine["overlap_ns"] / 1e6
    names = [str(stream) for stream in streams.tolist()]
    ax = _heat(values, names, names, "busy at once [ms]", "Blues", ax, "{:.3g}".format)
    ax.set_xlabel("stream")
    ax.set_ylabel(f"stream of rank {rank}")
    return ax


def copy_matrix(copies: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Bandwidth of the copies from each device to each other while any of a kind runs, in GB/s.

    ``copies`` has the columns of the measure of that name; of kinds of memory, pinned and pageable,
    it is the mean over their time, of several ranks the median.
    """
    known = copies.dropna(subset=["source", "destination", "gb_s_busy"])
    if known.empty:
        return nothing(ax, "no copy has a known size, source and destination")
    known = known.astype({"source": str, "destination": str})
    known["busy_ns"] = known["bytes"] / known["gb_s_busy"]
    each = known.groupby(["source", "destination", "rank"])[["bytes", "busy_ns"]].sum()
    each["gb_s"] = each["bytes"] / each["busy_ns"]
    speed = each.pivot_table(index="source", columns="destination", values="gb_s", aggfunc="median")
    names = sorted({*speed.index, *speed.columns}, key=lambda name: (len(name), name))
    values = speed.reindex(index=names, columns=names).to_numpy(np.float64)
    shown = [short(name) for name in names]
    ax = _heat(values, shown, shown, "bandwidth [GB/s]", "Blues", ax, rate)
    ax.set_xlabel("to")
    ax.set_ylabel("from")
    return ax


def wait_map(
    waits: pd.DataFrame, column: str, *, ranks: Collection[int] = (), ax: Axes | None = None
) -> Axes:
    """Waits of each rank in each step, in ms; some ranks outlined.

    ``waits`` has the columns of the measure ``step_waits``, of which ``column`` is shown.
    """
    if waits.empty or not waits[column].any():
        return nothing(ax, "nobody is known to wait")
    table = waits.pivot_table(index="rank", columns="step", values=column, aggfunc="sum")
    names, steps = ([str(name) for name in axis.tolist()] for axis in (table.index, table.columns))
    cause = column.startswith("caused")
    label = f"{'wait caused' if cause else 'waited'} [ms]"
    values = table.to_numpy(np.float64) / 1e6
    ax = _heat(values, names, steps, label, "Reds" if cause else "Oranges", ax, None)
    for place, rank in enumerate(table.index.tolist()):
        if rank in ranks:
            box = Rectangle((-0.5, place - 0.5), len(steps), 1, fill=False, ec="black", lw=1.5)
            ax.add_patch(box)
    ax.set_xlabel("step")
    ax.set_ylabel("rank")
    return ax


def _heat(
    values: np.ndarray[Any, np.dtype[np.float64]],
    rows: Sequence[str],
    columns: Sequence[str],
    label: str,
    colours: str,
    ax: Axes | None,
    written: Callable[[float], str] | None,
) -> Axes:
    ax = ax or figure(min(2.5 + 0.5 * len(columns), 11), len(rows) + 3)
    image = ax.imshow(values, cmap=colours, vmin=0, aspect="auto")
    ax.figure.colorbar(image, ax=ax, label=label)
    for axis, names in ((ax.xaxis, columns), (ax.yaxis, rows)):
        every = tick_distance(len(names))
        places = range(0, len(names), every)
        axis.set_ticks(list(places), [names[i] for i in places], fontsize="small")
    if written is not None and max(len(rows), len(columns)) <= _MOST_NUMBERS:
        middle = np.nanmax(values) / 2
        for row, column in np.argwhere(np.isfinite(values)).tolist():
            value = float(values[row, column])
            colour = "white" if value > middle else "black"
            text = written(value)
            ax.text(column, row, text, ha="center", va="center", color=colour, fontsize="small")
    return ax
