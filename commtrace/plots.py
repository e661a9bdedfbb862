"""Pictures of the tables: each function takes tables and ``ax=``, and returns the Axes.

Without ``ax`` a figure is made with pyplot; with it pyplot is never touched, and nothing
is ever shown. Empty tables give an Axes that says so. An operation has the same colour in
every picture (Paul Tol's *muted* scheme, which any colour vision can tell apart); greys
are for what is not communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PolyCollection
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, NullLocator, StrMethodFormatter

from commtrace import intervals
from commtrace.arrays import Float64

__all__ = ["bandwidth", "breakdown", "timeline"]

_COLOURS = {
    "compute": "#BBBBBB",
    "copy": "#555555",
    "all_reduce": "#332288",
    "all_gather": "#88CCEE",
    "reduce_scatter": "#44AA99",
    "broadcast": "#117733",
    "reduce": "#999933",
    "gather": "#DDCC77",
    "scatter": "#661100",
    "all_to_all": "#CC6677",
    "send": "#882255",
    "recv": "#AA4499",
    "barrier": "#EE7733",
    "communication": "#000000",  # of an operation that the trace does not show
}
_UNKNOWN = "communication, the rest unknown"
_SHARES = {
    "compute": "#BBBBBB",
    "compute and communication": "#88CCEE",
    "exposed communication": "#882255",
    "copy": "#555555",
    "idle": "#EEEEEE",
    _UNKNOWN: "#CC6677",
}
_MARKERS = "osDPXvp*h<>"
_DASHES = ("-", "--", ":", "-.")
_MAX_TICKS = 40  # more labels than this on one axis cannot be read
_MAX_LETTERS = 16


def breakdown(devices: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Where each device's time went: a horizontal bar per rank and device, in ms.

    ``devices`` has the columns of the metric of that name. The parts of a bar are disjoint
    and add up to the span, so *copy* is only what neither compute nor communication hides.
    Where only the communication is known, its length is all there is of the bar.
    """
    if devices.empty:
        return _nothing(ax, "no device did any work")
    ax = ax or _figure(9, len(devices))
    shares = _shares_ms(devices)
    span_ms = np.sum(list(shares.values()), axis=0)
    bars = np.arange(len(devices))
    left = np.zeros(len(devices))
    for name, length_ms in shares.items():
        ax.barh(bars, length_ms, left=left, height=0.8, color=_SHARES[name], label=name)
        if len(devices) <= _MAX_TICKS and name != _UNKNOWN:
            _percentages(ax, left, length_ms, span_ms, light=name.startswith(("exposed", "copy")))
        left += length_ms
    names = zip(devices["rank"], devices["device"], strict=True)
    _lane_axis(ax, [f"rank {rank}  {device}" for rank, device in names])
    ax.set_xlim(0, span_ms.max() or 1)
    ax.set_xlabel("time [ms]")
    _legend_above(ax, *ax.get_legend_handles_labels())
    return ax


def timeline(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    collectives: pd.DataFrame,
    ops: pd.DataFrame | None = None,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What ran when: a lane per rank and stream (on a CPU: thread), in ms from the start.

    The tables are those of a ``Trace``; communication is drawn from ``collectives``, not
    a second time from kernels or operators. ``start_ns`` and ``end_ns`` cut out a window
    of the tables' time. What is shorter than a pixel is drawn a pixel wide, and becomes
    one with what it then touches; where kinds meet, the one that took most time is on top.
    """
    events = _events(kernels, copies, collectives, ops)
    start = int(events["start_ns"].min()) if start_ns is None and len(events) else start_ns or 0
    end = int(events["end_ns"].max()) if end_ns is None and len(events) else end_ns or 0
    events = events[(events["end_ns"] >= start) & (events["start_ns"] <= end)]
    if events.empty:
        return _nothing(ax, "no event in this time")
    lanes = events.groupby(["rank", "device", "stream"])
    labels = [_lane_label(key) for key, _ in lanes]
    events = events.assign(lane=lanes.ngroup())
    ax = ax or _figure(11, len(labels))
    pixel_ns = int((end - start) / ax.get_window_extent().width) + 1
    drawn = [name for name in _COLOURS if (events["what"] == name).any()]
    busy = events.groupby("what")["duration_ns"].sum()
    for name in drawn:
        boxes = _boxes(events[events["what"] == name], start, end, pixel_ns)
        colour, on_top = _COLOURS[name], 1 + busy[name] / (busy.sum() or 1)
        ax.add_collection(PolyCollection(list(boxes), fc=colour, linewidths=0, zorder=on_top))
    _lane_axis(ax, labels)
    ax.set_xlim(0, (end - start) / 1e6 or 1)
    ax.set_xlabel("time from the start [ms]")
    _legend_above(ax, [Patch(color=_COLOURS[name]) for name in drawn], drawn)
    return ax


def bandwidth(collectives: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Bus bandwidth against size, both logarithmic: a line per operation, type and group.

    ``collectives`` has the columns of the metric of that name; bandwidth is the busbw of
    nccl-tests in GB/s (1e9 bytes), size the full array. The colour tells the operation, the
    dashes the type, the marker the process group; an arrow upwards marks a lower bound.
    What has no size or no bandwidth, as a barrier, is not in the picture.
    """
    measured = collectives["busbw_gb_s"].gt(0) & collectives["size_bytes"].gt(0).fillna(False)
    shown = collectives[measured.astype(bool)].sort_values("size_bytes")
    if shown.empty:
        return _nothing(ax, "no operation has a size and a bandwidth")
    ax = ax or _figure(8, 10)
    dashes, markers = _assigned(shown["dtype"], _DASHES), _assigned(shown["group"], _MARKERS)
    for key, points in shown.groupby(["op", "dtype", "group"], observed=True, dropna=False):
        op, dtype, group = (_text(part) for part in key)
        names = (op, dtype, f"group {group}") if len(markers) > 1 else (op, dtype)
        size, rate = (
            points["size_bytes"].to_numpy(dtype=float),
            points["busbw_gb_s"].to_numpy(dtype=float),
        )
        lower = points["bound"].eq("lower").to_numpy(bool)
        colour = _COLOURS.get(op, _COLOURS["communication"])
        ax.plot(size, rate, dashes[dtype] + markers[group], color=colour, label="  ".join(names))
        arrow = 0.2 * rate[lower]
        ax.errorbar(size[lower], rate[lower], arrow, fmt="none", ecolor=colour, lolims=True)
    if shown["bound"].eq("lower").any():
        ax.plot([], [], "^", color="#555555", label="lower bound")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(shown["size_bytes"].min() / 2, shown["size_bytes"].max() * 2)
    ax.set_ylim(shown["busbw_gb_s"].min() / 2, shown["busbw_gb_s"].max() * 2)
    _label_log(ax.xaxis, EngFormatter(unit="B"))
    _label_log(ax.yaxis, StrMethodFormatter("{x:g}"))
    ax.set_xlabel("size of the full array [bytes]")
    ax.set_ylabel("bus bandwidth [GB/s]")
    ax.grid(color="#E5E5E5")
    _plain(ax.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1)))
    return ax


def _figure(width: float, lanes: int) -> Axes:
    from matplotlib import pyplot as plt

    height = 1.4 + 0.32 * min(lanes, 2 * _MAX_TICKS)
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def _nothing(ax: Axes | None, why: str) -> Axes:
    ax = ax or _figure(6, 2)
    ax.set_axis_off()
    ax.text(0.5, 0.5, f"nothing to show: {why}", ha="center", va="center", transform=ax.transAxes)
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


def _events(
    kernels: pd.DataFrame, copies: pd.DataFrame, collectives: pd.DataFrame, ops: pd.DataFrame | None
) -> pd.DataFrame:
    """Everything to draw, in one table: rank, device, stream, start_ns, end_ns, what."""
    op = collectives["op"].astype(object)
    parts = [
        kernels[kernels["kind"] == "compute"].assign(what="compute"),
        copies.assign(what="copy"),
        collectives.assign(what=op.where(op.isin(list(_COLOURS)), "communication")),
    ]
    if ops is not None:
        host = ops[ops["kind"] == "compute"].rename(columns={"thread": "stream"})
        parts.append(host.assign(what="compute", device="cpu"))
    columns = ["rank", "device", "stream", "start_ns", "duration_ns", "what"]
    plain = [p[columns].astype({"device": object, "what": object}) for p in parts if len(p)]
    if not plain:
        return pd.DataFrame(columns=[*columns, "end_ns"])
    events = pd.concat(plain, ignore_index=True)
    return events.assign(end_ns=events["start_ns"] + events["duration_ns"])


def _boxes(events: pd.DataFrame, start: int, end: int, pixel_ns: int) -> Float64:
    """One rectangle (4 corners, in ms and lanes) per run of events that no pixel parts."""
    boxes = []
    for lane in events["lane"].unique():
        part = events[events["lane"] == lane]
        first = part["start_ns"].to_numpy().clip(start, end)
        last = part["end_ns"].to_numpy().clip(start, end)
        left, right = intervals.union(first, np.maximum(last, first + pixel_ns))
        x = (np.stack([left, right, right, left], axis=1) - start) / 1e6
        y = np.broadcast_to(np.array([-0.4, -0.4, 0.4, 0.4]) + lane, x.shape)
        boxes.append(np.stack([x, y], axis=2))
    return np.concatenate(boxes)


def _lane_label(lane: tuple[Any, ...]) -> str:
    rank, device, stream = lane
    return f"rank {rank}  {device}  {'thread' if device == 'cpu' else 'stream'} {stream}"


def _lane_axis(ax: Axes, labels: list[str]) -> None:
    """The first lane on top; every n-th named where there are too many to read."""
    every = -(-len(labels) // _MAX_TICKS)
    ax.set_yticks(range(0, len(labels), every), labels[::every], fontsize="small")
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _label_log(axis: Axis, formatter: Formatter) -> None:
    """Labels at powers of ten, and between them as many as there is room for."""
    low, high = axis.get_view_interval()
    between = (1, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 1000 * low else (1,)
    axis.set_major_locator(LogLocator(subs=between, numticks=_MAX_TICKS))
    axis.set_major_formatter(formatter)
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(labelsize="small")


def _assigned(values: pd.Series[Any], looks: Sequence[str]) -> dict[str, str]:
    """A look for each different value, again from the first when there are too few."""
    return dict(zip(dict.fromkeys(map(_text, values)), cycle(looks), strict=False))


def _text(value: Any) -> str:
    text = "?" if pd.isna(value) else str(value)
    return text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 1] + "…"


def _legend_above(ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """In as few lines as are no wider than the Axes."""
    for columns in range(len(labels), 0, -1):
        legend = ax.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=columns,
            frameon=False,
            fontsize="small",
        )
        if legend.get_window_extent().width <= ax.get_window_extent().width:
            break


def _plain(legend: Legend) -> None:
    """Names come from traces: a $ in them starts no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
