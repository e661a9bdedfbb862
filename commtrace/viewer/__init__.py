"""A recording in Perfetto: the ranks that analysis would take, as one file for the browser.

The page is Perfetto's own, https://ui.perfetto.dev; the trace never leaves the machine.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from commtrace.measures import Measures
from commtrace.reader import read
from commtrace.reports import content
from commtrace.table import rows
from commtrace.units import counted
from commtrace.viewer.merge import merge
from commtrace.viewer.server import PAGE, PORT, serving

__all__ = ["merge", "open_in_perfetto"]

_GRACE_S = 3.0
_MENDED = {"truncated", "damaged", "repaired"}  # notes on files that Perfetto would refuse


def open_in_perfetto(
    paths: Sequence[str | Path],
    *,
    browser: Callable[[str], object] = webbrowser.open,
    port: int = PORT,
    tell: Callable[[str], object] = lambda _: None,
) -> None:
    """Show what ``paths`` hold in Perfetto, all ranks on one time axis.

    The ranks, and what is noted of their files, are those of ``reader.read``. One whole
    file is served as it is; several, or what can be read of a damaged one, from a
    temporary file. Only that is served, from 127.0.0.1 and to Perfetto's page only, until
    the page has fetched it or Ctrl-C; ``tell`` gets the lines a person needs meanwhile.
    Another ``port`` is for a page of one's own. Raises TraceError where no file can be
    read, UsageError when the port is taken.
    """
    trace = read(paths)
    for note in content.notes(trace.notes):
        tell(note)
    if trace.pauses:
        tell("of a rank that has several files, the first is shown")
    with tempfile.TemporaryDirectory(prefix="commtrace-") as folder:
        file = _one_file(trace, Path(folder), tell)
        with serving(file, port) as server, contextlib.suppress(KeyboardInterrupt):
            link = f"{PAGE}/#!/?url={server.address}"
            tell(f"opening {link}")
            tell("Chrome asks for access to the local network: allow it. Ctrl-C stops.")
            browser(link)
            server.fetched.wait()
            time.sleep(_GRACE_S)  # a reload of the page that follows at once still works


def _one_file(trace: Measures, folder: Path, tell: Callable[[str], object]) -> Path:
    files = {row["rank"]: Path(row["file"]) for row in rows(trace.ranks)}
    if len(files) == 1 and not _MENDED.intersection(note.code for note in trace.notes):
        return files.popitem()[1]
    target = folder / "trace.json.gz"
    if left_out := merge(files, target):
        tell(f"not shown, without a kind or a usable time: {counted(left_out, 'event')}")
    return target
