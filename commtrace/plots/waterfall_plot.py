"""A picture of what a change is made of."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from commtrace.plots.figure import figure, nothing
from commtrace.units import cut

__all__ = ["waterfall"]

_WHOLE, _MORE, _LESS = "#BBBBBB", "#CC6677", "#44AA99"
_NAME = 40


def waterfall(bars: Sequence[tuple[str, int, int]], *, ax: Axes | None = None) -> Axes:
    """From a step of the base to one of the candidate, in ms: what made it longer, or shorter.

    Each bar is a name, and from where to where it goes, in ns; the first and last are whole steps.
    """
    if not bars:
        return nothing(ax, "no steps to compare")
    ax = ax or figure(9, len(bars))
    for at, (_, begin, end) in enumerate(bars):
        whole = at in (0, len(bars) - 1)
        colour = _WHOLE if whole else _MORE if end > begin else _LESS
        ax.barh(at, abs(end - begin) / 1e6, left=min(begin, end) / 1e6, color=colour, height=0.7)
        label = f"{end / 1e6:.1f}" if whole else f"{(end - begin) / 1e6:+.1f}"
        ax.annotate(
            label, (max(begin, end) / 1e6, at), (3, 0), textcoords="offset points", va="center"
        )
        if not whole:
            ax.plot([begin / 1e6] * 2, [at - 1, at], color="black", linewidth=0.5)
    ax.set_yticks(range(len(bars)), [cut(name, _NAME) for name, *_ in bars])
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.set_xlabel("time per step [ms]")
    return ax
