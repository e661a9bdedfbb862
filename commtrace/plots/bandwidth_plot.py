"""Bus bandwidth against size."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from commtrace.plots.figure import COLOURS, assigned, figure, label_log, nothing, plain, short

__all__ = ["bandwidth"]

_MARKERS = "osDPXvp*h<>"
_DASHES = ("-", "--", ":", "-.")
_LINE = 3  # sizes


def bandwidth(collectives: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Bus bandwidth against size, both logarithmic: a series per operation, type and group.

    ``collectives`` has the columns of the metric of that name; bandwidth is the busbw of
    nccl-tests in GB/s (1e9 bytes), size the full array. The colour tells the operation, the
    dashes the type, the marker the process group, or of too many groups their dimension; an arrow
    upwards marks a lower bound. What has no size or no bandwidth, as a barrier, is not in the
    picture; fewer than three sizes are joined by no line, nor are groups of a dimension.
    """
    measured = collectives["busbw_gb_s"].gt(0) & collectives["size_bytes"].gt(0).fillna(False)
    shown = collectives[measured.astype(bool)].sort_values("size_bytes")
    if shown.empty:
        return nothing(ax, "no operation has a size and a bandwidth")
    ax = ax or figure(8, 10)
    together = "dimension" if shown["group"].nunique() > len(_MARKERS) else "group"
    dashes, markers = assigned(shown["dtype"], _DASHES), assigned(shown[together], _MARKERS)
    for key, points in shown.groupby(["op", "dtype", together], observed=True, dropna=False):
        op, dtype, group = (short(part) for part in key)
        names = (op, dtype, f"{together} {group}") if len(markers) > 1 else (op, dtype)
        size, rate = (
            points["size_bytes"].to_numpy(dtype=float),
            points["busbw_gb_s"].to_numpy(dtype=float),
        )
        lower = points["bound"].eq("lower").to_numpy(bool)
        colour = COLOURS.get(op, COLOURS["communication"])
        joined = len(points) >= _LINE and together == "group"
        line = dashes[dtype] if joined else ""
        ax.plot(size, rate, line + markers[group], color=colour, label="  ".join(names))
        arrow = 0.2 * rate[lower]
        ax.errorbar(size[lower], rate[lower], arrow, fmt="none", ecolor=colour, lolims=True)
    if shown["bound"].eq("lower").any():
        ax.plot([], [], "^", color="#555555", label="lower bound")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(shown["size_bytes"].min() / 2, shown["size_bytes"].max() * 2)
    ax.set_ylim(shown["busbw_gb_s"].min() / 2, shown["busbw_gb_s"].max() * 2)
    label_log(ax.xaxis, EngFormatter(unit="B"))
    label_log(ax.yaxis, StrMethodFormatter("{x:g}"))
    ax.set_xlabel("size of the full array [bytes]")
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.grid(color="#E5E5E5")
    plain(ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1)))
    return ax
