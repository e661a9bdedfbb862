"""A picture as the bytes of a file."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.plots.of_run import Plot

__all__ = ["SUFFIXES", "image"]

SUFFIXES = (".png", ".svg", ".pdf")
_DPI = 150


def image(plot: Plot, name: str, suffix: str) -> bytes:
    """The picture of a name, one of ``of_run.NAMES``, as a file that ends so."""
    import matplotlib as mpl

    mpl.use("agg")  # no window, nor a display for one
    from matplotlib import pyplot as plt

    figure = getattr(plot, name)().figure
    written = BytesIO()
    figure.savefig(written, format=suffix.removeprefix("."), dpi=_DPI, bbox_inches="tight")
    plt.close(figure)
    return written.getvalue()
