"""What ran when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch

from commtrace import intervals
from commtrace.arrays import Float64
from commtrace.diagnosis import Finding
from commtrace.plots.figure import COLOURS, figure, lane_axis, legend_above, nothing

__all__ = ["timeline"]

_WAITING = "waiting"


def timeline(
    events: pd.DataFrame,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    finding: Finding | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What ran when: a lane per rank and stream (on a CPU: thread), in ms from the start.

    ``events`` has the columns of the measure of that name; waiting for other ranks is hatched,
    apart from the transfer. ``start_ns`` and ``end_ns`` cut out a window of the run's time; a
    finding's time is shaded. A pixel of which something took a part is the lighter the less that
    was; where kinds meet, the one that took most time is on top.
    """
    whole = events.assign(end_ns=events["start_ns"] + events["duration_ns"])
    start = int(whole["start_ns"].min()) if start_ns is None and len(whole) else start_ns or 0
    end = int(whole["end_ns"].max()) if end_ns is None and len(whole) else end_ns or 0
    shown = whole[(whole["end_ns"] >= start) & (whole["start_ns"] <= end)]
    if shown.empty:
        return nothing(ax, "no event in this time")
    lanes = shown.groupby(["rank", "device", "stream"], observed=True)
    labels = [_lane_label(key) for key, _ in lanes]
    parts = _parts(shown.assign(lane=lanes.ngroup()))
    ax = ax or figure(11, len(labels))
    if finding is not None:
        ax.axvspan(
            (finding.start_ns - start) / 1e6,
            (finding.end_ns - start) / 1e6,
            color="#FFF3B0",
            zorder=0,
        )
    pixels = int(ax.get_window_extent().width)
    drawn = [name for name in COLOURS if (parts["what"] == name).any()]
    busy = (parts["end_ns"] - parts["start_ns"]).groupby(parts["what"]).sum()
    for name in drawn:
        boxes, alpha = _boxes(parts[parts["what"] == name], start, end, pixels)
        on_top = 1 + busy[name] / (busy.sum() or 1)
        look = {**_look(name), "facecolor": [to_rgba(COLOURS[name], its) for its in alpha]}
        ax.add_collection(PolyCollection(list(boxes), **look, zorder=on_top))
    lane_axis(ax, labels)
    ax.set_xlim(0, (end - start) / 1e6 or 1)
    ax.set_xlabel("time from the start [ms]; lighter where something ran for a part of it")
    legend_above(ax, [Patch(**_look(name)) for name in drawn], drawn)
    return ax


def _look(name: str) -> dict[str, Any]:
    hatch = {"hatch": "//////", "edgecolor": "#B36B00"} if name == _WAITING else {}
    return {"facecolor": COLOURS[name], "linewidth": 0, **hatch}


def _parts(events: pd.DataFrame) -> pd.DataFrame:
    """The events with what they are called in the legend; what waited is two."""
    name = events["name"].astype(object)
    communication = events["kind"] == "communication"
    known = name.where(name.isin(list(COLOURS)), "communication")
    what = known.where(communication, events["kind"].astype(object))
    waited = events[events["wait_ns"] > 0]
    waits = waited.assign(end_ns=waited["start_ns"] + waited["wait_ns"], what=_WAITING)
    own = events.assign(start_ns=events["start_ns"] + events["wait_ns"], what=what)
    columns = ["lane", "start_ns", "end_ns", "what"]
    return pd.concat([own[columns], waits[columns]], ignore_index=True)


def _boxes(events: pd.DataFrame, start: int, end: int, pixels: int) -> tuple[Float64, Float64]:
    """Rectangles (4 corners, in ms and lanes), each of pixels of one shade, and how opaque."""
    boxes, opacities = [], []
    for lane in events["lane"].unique():
        part = events[events["lane"] == lane]
        began, ended = part["start_ns"].to_numpy(), part["end_ns"].to_numpy()
        ran = intervals.union(began, np.maximum(ended, began + 1))
        left, right, opacity = intervals.shaded(ran, start, end, pixels)
        x = np.stack([left, right, right, left], axis=1) * ((end - start) / 1e6 / pixels)
        y = np.broadcast_to(np.array([-0.4, -0.4, 0.4, 0.4]) + lane, x.shape)
        boxes.append(np.stack([x, y], axis=2))
        opacities.append(opacity)
    return np.concatenate(boxes), np.concatenate(opacities)


def _lane_label(lane: tuple[Any, ...]) -> str:
    rank, device, stream = lane
    return f"rank {rank}  {device}  {'thread' if device == 'cpu' else 'stream'} {stream}"
