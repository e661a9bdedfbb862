"""What is on the critical path of each step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from commtrace.plots.figure import MAX_TICKS, figure, legend_above, nothing

__all__ = ["critical_path"]

_KINDS = {
    "compute": "#BBBBBB",
    "transfer": "#88CCEE",
    "launch": "#332288",
    "host": "#DDCC77",
    "copy": "#555555",
    "idle": "#EEEEEE",
}


def critical_path(path: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """A stacked column per step, in ms. ``path`` has the columns of the measure of that name."""
    if path.empty:
        return nothing(ax, "no critical path is known")
    named = path.astype({"kind": str})
    table = named.pivot_table(
        index="step", columns="kind", values="time_ns", aggfunc="sum", fill_value=0
    )
    table = table / 1e6
    ax = ax or figure(min(3 + 0.4 * len(table), 11), 9)
    places = np.arange(len(table))
    below = np.zeros(len(table))
    shown = [kind for kind in _KINDS if kind in table]
    for kind in shown:
        height = table[kind].to_numpy(np.float64)
        ax.bar(places, height, bottom=below, width=0.8, color=_KINDS[kind], label=kind)
        below += height
    every = -(-len(table) // MAX_TICKS)
    names = [str(step) for step in table.index.tolist()]
    ax.set_xticks(places[::every], names[::every], fontsize="small")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlabel("step")
    ax.set_ylabel("time [ms]")
    legend_above(ax, *ax.get_legend_handles_labels())
    return ax
