"""How long operations took."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from commtrace.plots.figure import COLOURS, figure, label_log, nothing, plain

__all__ = ["durations"]


def durations(called: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Of each operation the share of its calls that took at most so long, logarithmic.

    ``called`` are rows of ``collectives``: waiting for other ranks is part of a duration.
    """
    timed = called[called["op"].notna() & (called["duration_ns"] > 0)]
    if timed.empty:
        return nothing(ax, "no operation has a duration")
    ax = ax or figure(8, 9)
    for op, time_ns in timed["duration_ns"].groupby(timed["op"].astype(str)):
        time = np.sort(time_ns.to_numpy(np.float64)) / 1e9
        share = 100 * np.arange(1, time.size + 1) / time.size
        colour = COLOURS.get(str(op), COLOURS["communication"])
        label = f"{op} ({time.size:,})"
        ax.step(time, share, where="post", color=colour, label=label)
    longest, shortest = timed["duration_ns"].max() / 1e9, timed["duration_ns"].min() / 1e9
    ax.set_xscale("log")
    ax.set_xlim(shortest / 1.2, longest * 1.2)
    label_log(ax.xaxis, EngFormatter(unit="s"))
    ax.set_ylim(0, 101)
    ax.set_xlabel("duration")
    ax.set_ylabel("calls that took at most so long [%]")
    ax.grid(color="#E5E5E5")
    plain(ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1)))
    return ax
