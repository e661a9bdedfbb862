"""``commtrace open``."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from commtrace.cli.rule_options import Ignore, Paths, Select, Thresholds, rules_wanted
from commtrace.cli.streams import asking, reading, tell
from commtrace.errors import UsageError
from commtrace.viewer import SUFFIXES

__all__ = ["open_run"]


class Keep(str, Enum):
    """How much of the original ``open`` shows."""

    kernels = "kernels"
    operators = "operators"
    everything = "everything"


def open_run(
    paths: Paths,
    finding: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Open at the finding of this number in the report, its ranks' tracks pinned; "
            "default: the whole run.",
        ),
    ] = None,
    keep: Annotated[
        Keep, typer.Option(help="How much of the original traces to show.")
    ] = Keep.kernels,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Keep the timeline in this file, which ends in {SUFFIXES[0]}; default: nowhere.",
        ),
    ] = None,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="Fail unless Perfetto's page is on this machine; default: use either."
        ),
    ] = False,
    no_browser: Annotated[
        bool,
        typer.Option("--no-browser", help="Print the address only; default: open it."),
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    thresholds: Thresholds = None,
) -> None:
    """Show a run in Perfetto: its ranks on one clock, its findings."""
    if save is not None and not save.name.endswith(SUFFIXES[0]):
        raise UsageError(f"--save {save}: end its name in {SUFFIXES[0]}")
    import webbrowser

    from commtrace.reports import content
    from commtrace.run import check_rules, load
    from commtrace.viewer.opening import check_offline, open_timeline

    if offline:
        check_offline()
    rules = rules_wanted(select, ignore, thresholds)
    check_rules(**rules)
    with reading() as shown:
        run = load(paths, read_bytes=shown)
    with asking() as shown:
        analysis = run.analysis(**rules, progress=shown)
    for note in content.notes(analysis.notes):
        tell(note)
    far = "SSH_CONNECTION" in os.environ and "DISPLAY" not in os.environ
    open_timeline(
        analysis,
        finding=finding,
        keep=keep.value,
        save=save,
        browser=None if no_browser or far else webbrowser.open,
        tell=tell,
    )
