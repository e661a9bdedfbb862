"""``commtrace compare``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from commtrace.cli.light_command import LightCommand
from commtrace.cli.report_options import Workers, format_of, format_option, output_option
from commtrace.cli.streams import WIDTH, append, look, reading, say, write
from commtrace.errors import UsageError
from commtrace.reports import Look
from commtrace.reports.comparison import FORMATS

__all__ = ["CompareCommand", "compare"]

_MARK = "\0--"
_REGRESSION = 1
_SUMMARY = "GITHUB_STEP_SUMMARY"  # where GitHub has the file for a job's summary


class CompareCommand(LightCommand):
    """``--`` stands between the recordings of both sides."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """Two ways to say which is which."""
        return ["[OPTIONS]", "(BASE CANDIDATE | BASE… -- CANDIDATE…)"]

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Keep the mark among the paths."""
        return super().parse_args(context, [_MARK if its == "--" else its for its in arguments])


def compare(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE CANDIDATE",
            help="The recording before and the one after a change; of several recordings of each, "
            "all before, `--`, and all after.",
        ),
    ],
    output: Annotated[Path | None, output_option()] = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,  # noqa: A002 - the option's name
    gate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PCT",
            help="Exit with status 1 if a step is surely longer by more than this percentage; "
            "default: no gate.",
        ),
    ] = None,
    workers: Workers = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with status 1 if it is inconclusive, too; default: with 0."
        ),
    ] = False,
) -> None:
    """Whether steps became slower, where, and whether that is real."""
    base, candidate = _sides(paths)
    chosen = format or format_of(output, FORMATS)
    from commtrace.comparing.gate import Gate
    from commtrace.comparison import compare as compare_runs

    asked = Gate(gate, strict)
    with reading() as shown:
        its = compare_runs(
            base, candidate, same_pct=gate, workers=workers, read_bytes=shown
        ).compared
    if output is not None:
        write(output, FORMATS.named(chosen).render(its, asked, Look(WIDTH)))
    elif chosen == "github" and (summary := os.environ.get(_SUMMARY)):
        from commtrace.reports.comparison import github, markdown

        append(Path(summary), markdown.render(its, asked))
        say(github.annotation(its, asked))
    else:
        say(FORMATS.named(chosen).render(its, asked, look()))
    if asked.failed(its) is not None:
        raise typer.Exit(_REGRESSION)


def _sides(paths: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if _MARK in paths:
        at = paths.index(_MARK)
        base, candidate = paths[:at], paths[at + 1 :]
        if base and candidate and _MARK not in candidate:
            return base, candidate
    elif len(paths) == 2:
        return paths[:1], paths[1:]
    raise UsageError(
        "compare: needs a recording of each side: BASE CANDIDATE, or BASE… -- CANDIDATE…"
    )
