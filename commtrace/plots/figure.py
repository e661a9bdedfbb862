"""What pictures share: an Axes where none is given, lanes, logarithmic axes, legends.

Without ``ax`` a figure is made with pyplot; with it pyplot is never touched, and nothing is ever
shown. An operation has the same colour in every picture (Paul Tol's *muted* scheme, which any
colour vision can tell apart); greys are for what is not communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.legend import Legend
from matplotlib.ticker import Formatter, LogLocator, NullLocator

__all__ = [
    "COLOURS",
    "MAX_TICKS",
    "assigned",
    "figure",
    "label_log",
    "lane_axis",
    "legend_above",
    "nothing",
    "plain",
    "short",
    "tick_distance",
]

COLOURS = {
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
    "waiting": "#FFE0B0",
}
_UNKNOWN = "communication, the rest unknown"
MAX_TICKS = 40
"""More labels than this on one axis cannot be read."""
_MAX_LETTERS = 16


def figure(width: float, lanes: int) -> Axes:
    """A figure of its own, high enough for so many lanes, as far as these can have names."""
    from matplotlib import pyplot as plt

    height = 1.4 + 0.32 * min(lanes, MAX_TICKS)
    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def nothing(ax: Axes | None, why: str) -> Axes:
    """An Axes that says why there is nothing on it."""
    ax = ax or figure(6, 2)
    ax.set_axis_off()
    ax.text(0.5, 0.5, f"nothing to show: {why}", ha="center", va="center", transform=ax.transAxes)
    return ax


def lane_axis(ax: Axes, labels: list[str]) -> None:
    """The first lane on top; every n-th named where there are too many to read."""
    every = tick_distance(len(labels))
    ax.set_yticks(range(0, len(labels), every), labels[::every], fontsize="small")
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def tick_distance(count: int) -> int:
    """Every n-th of so many has a name: a power of two, as the ranks of a host are.

    >>> tick_distance(40), tick_distance(256)
    (1, 8)
    """
    return 1 << (-(-count // MAX_TICKS) - 1).bit_length() if count else 1


def label_log(axis: Axis, formatter: Formatter) -> None:
    """Labels at powers of ten, and between them as many as there is room for."""
    low, high = axis.get_view_interval()
    between = (1, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 1000 * low else (1,)
    axis.set_major_locator(LogLocator(subs=between, numticks=MAX_TICKS))
    axis.set_major_formatter(formatter)
    axis.set_minor_locator(NullLocator())
    axis.set_tick_params(labelsize="small")


def assigned(values: pd.Series[Any], looks: Sequence[str]) -> dict[str, str]:
    """A look for each different value, again from the first when there are too few."""
    return dict(zip(dict.fromkeys(map(short, values)), cycle(looks), strict=False))


def short(value: Any) -> str:
    """A name from a trace, not too long for a legend."""
    text = "?" if pd.isna(value) else str(value)
    return text if len(text) <= _MAX_LETTERS else text[: _MAX_LETTERS - 1] + "…"


def legend_above(ax: Axes, handles: Sequence[Artist], labels: Sequence[str]) -> None:
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


def plain(legend: Legend) -> None:
    """Names come from traces: a $ in them starts no formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)
