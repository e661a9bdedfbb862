"""``commtrace cache``."""

from __future__ import annotations

from typing import Annotated

import typer

from commtrace.cli.streams import say

__all__ = ["cache"]


def cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove all of it; default: nothing.")
    ] = False,
) -> None:
    """Where what was read is kept, and how much it is."""
    from commtrace.reader import cache as its
    from commtrace.units import counted, size

    if clear:
        its.clear()
    kept = its.entries()
    bytes_, most = size(sum(entry.size for entry in kept)), size(its.MOST_BYTES)
    say(f"{its.folder()}: {counted(len(kept), 'file')}, {bytes_} of at most {most}\n")
