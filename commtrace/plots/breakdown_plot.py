"""Where each device's time went."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from commtrace.arrays import Float64
from commtrace.plots.figure import MAX_TICKS, figure, lane_axis, legend_above, nothing

__all__ = ["breakdown"]

_UNKNOWN = "communication, the rest unknown"
_SHARES = {
    "compute": "#BBBBBB",
    "compute and communication": "#88CCEE",
    "exposed communication": "#882255",
    "copy": "#555555",
    "idle": "#EEEEEE",
    _UNKNOWN: "#CC6677",
}


def breakdown(
    devices: pd.DataFrame, *, ranks: Collection[int] = (), ax: Axes | None = None
) -> Axes:
    """Where each device's time went: a horizontal bar per rank and device, in ms.

    ``devices`` has the columns of the metric of that name. The parts of a bar are disjoint
    and add up to the span, so *copy* is only what neither compute nor communication hides.
    Where only the communication is known, its length is all there is of the bar. The names of
    ``ranks`` are in bold.
    """
    if devices.empty:
        return nothing(ax, "no device did any work")
    ax = ax or figure(9, len(devices))
    shares = _shares_ms(devices)
    span_ms = np.sum(list(shares.values()), axis=0)
    bars = np.arange(len(devices))
    left = np.zeros(len(devices))
    for name, length_ms in shares.items():
        ax.barh(bars, length_ms, left=left, height=0.8, color=_SHARES[name], label=name)
        if len(devices) <= MAX_TICKS and name != _UNKNOWN:
            _percentages(ax, left, length_ms, span_ms, light=name.startswith(("exposed", "copy")))
        left += length_ms
    names = zip(devices["rank"], devices["device"], strict=True)
    lane_axis(ax, [f"rank {rank}  {device}" for rank, device in names])
    if len(devices) <= MAX_TICKS:
        for label, rank in zip(ax.get_yticklabels(), devices["rank"], strict=True):
            label.set_fontweight("bold" if rank in ranks else "normal")
    ax.set_xlim(0, span_ms.max() or 1)
    ax.set_xlabel("time [ms]")
    legend_above(ax, *ax.get_legend_handles_labels())
    return ax


def _shares_ms(devices: pd.DataFrame) -> dict[str, Float64]:
    """The disjoint parts of the span, in the order of ``_SHARES``."""
    names = ("span", "compute", "overlapped_communication", "exposed_communication", "idle")
    known = devices["compute_ns"].notna().to_numpy()
    span, compute, overlapped, exposed, idle = (_ms(devices[f"{n}_ns"]) * known for n in names)
    copy = span - idle - compute - exposed
    lengths = (compute - overlapped, overlapped, exposed, copy, idle)
    shares = dict(zip(_SHARES, lengths, strict=False))
    return (
        shares if known.all() else {**shares, _UNKNOWN: _ms(devices["communication_ns"]) * ~known}
    )


def _ms(time_ns: pd.Series[Any]) -> Float64:
    return time_ns.fillna(0).to_numpy(dtype=float) / 1e6


def _percentages(
    ax: Axes, left: Float64, length_ms: Float64, span_ms: Float64, *, light: bool
) -> None:
    """Each part's share of its bar's span, where there is room for the number."""
    roomy = length_ms > 0.05 * span_ms.max()
    for bar in np.flatnonzero(roomy).tolist():
        share = f"{100 * length_ms[bar] / span_ms[bar]:.0f} %"
        middle = left[bar] + length_ms[bar] / 2
        colour = "white" if light else "black"
        ax.text(middle, bar, share, ha="center", va="center", fontsize="small", color=colour)
