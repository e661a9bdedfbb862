"""A run as one file for Perfetto: all ranks on one clock, with what the analysis knows of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from isal import igzip

from commtrace.diagnosis import CannotLook
from commtrace.errors import UsageError
from commtrace.metrics.run.run_clock import own_clocks
from commtrace.metrics.run.span import run_span
from commtrace.units import counted, numbered
from commtrace.viewer import SUFFIXES
from commtrace.viewer.chrome_file import ChromeFile
from commtrace.viewer.counters import draw_counters
from commtrace.viewer.findings import draw_critical_path, draw_findings
from commtrace.viewer.operations import draw_operations, draw_waited_for, undrawn_arrows
from commtrace.viewer.original import draw_original
from commtrace.viewer.perfetto_file import PerfettoFile
from commtrace.viewer.rank_tracks import draw_lines, draw_steps, draw_streams, draw_threads

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.measures import Measures
    from commtrace.viewer.slices import Timeline

__all__ = ["RUN", "rank_name", "write_timeline"]

RUN = "all ranks"
"""The group of tracks that are no rank's own."""
_MARGIN_NS = 60 * 10**9  # of Chrome's JSON before the first event: what was called before it
_ARROWS = 1 << 40  # the first number of an arrow that is a file's own: above the analysis' own


def write_timeline(analysis: Analysis, target: Path, keep: str = "kernels") -> list[str]:
    """Write the run as a timeline, in the format that the end of the name says: SUFFIXES.

    ``keep`` is one of KEEP: how much of the original is in it. One rank at a time is drawn.
    Returns what is not drawn, a line each. Raises UsageError where it cannot be written, and
    TraceError for a file that can no longer be read.
    """
    if keep != "kernels" and not target.name.endswith(SUFFIXES[0]):
        raise UsageError(f"{target}: more than kernels is kept in {SUFFIXES[0]} only: end it so")
    with _written(target) as out:
        if target.name.endswith(SUFFIXES[0]):
            return _draw(analysis, PerfettoFile(out), keep)
        chrome = ChromeFile(out, run_span(analysis.measures)[0] - _MARGIN_NS)
        left_out = _draw(analysis, chrome, keep)
        chrome.close()
        return left_out


def rank_name(run: Measures, rank: int) -> str:
    """As a track is named, so that names are in the order of ranks: ``rank 07``."""
    return f"rank {rank:0{len(str(run.rows('ranks').ints('rank').max()))}}"


def _draw(analysis: Analysis, timeline: Timeline, keep: str) -> list[str]:
    run = analysis.measures
    ranks = sorted(run.rows("ranks").ints("rank").tolist())
    names = {rank: rank_name(run, rank) for rank in ranks}
    left_out = list(_own_clocks(run))
    above = timeline.track(RUN)
    draw_findings(analysis, timeline, above)
    try:
        draw_critical_path(run, timeline, above)
    except CannotLook as reason:
        left_out.append(f"no critical path: {reason}")
    tracks = {rank: timeline.track(name) for rank, name in names.items()}
    for rank, name in names.items():
        draw_waited_for(run, timeline, name, rank, tracks[rank])
    arrows = itertools.count(_ARROWS)
    lost = 0
    for rank, name in names.items():
        timeline.section()
        for draw in (draw_steps, draw_lines, draw_operations, draw_counters):
            draw(run, timeline, name, rank, tracks[rank])
        if keep == "kernels":
            draw_streams(run, timeline, name, rank, tracks[rank])
            draw_threads(run, timeline, name, rank, tracks[rank])
        else:
            lost += draw_original(run, timeline, name, rank, tracks[rank], arrows, keep)
    if lost:
        left_out.append(f"not drawn, without a kind or a usable time: {counted(lost, 'event')}")
    return left_out


def _own_clocks(run: Measures) -> Iterator[str]:
    if ranks := own_clocks(run):
        yield f"on their own clock, which nothing ties to the others': {numbered('rank', ranks)}"
    if count := undrawn_arrows(run):
        yield f"without an arrow, over before the last rank came: {counted(count, 'operation')}"


@contextlib.contextmanager
def _written(target: Path) -> Iterator[BinaryIO]:
    """A gzipped file that is there wholly or not at all."""
    whole = target.resolve()  # a link stays one
    part = whole.with_name(f"{whole.name}.part")
    try:
        try:
            with igzip.open(part, "wb", compresslevel=1) as out:
                yield cast("BinaryIO", out)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{target}: cannot be written: {error.strerror}: make room, or name another"
        ) from None
