"""``commtrace compare``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from commtrace.cli.streams import WIDTH, append, look, progress, say, write
from commtrace.errors import UsageError
from commtrace.reports import Look
from commtrace.reports.comparison import FORMATS, format_named, format_of_file

__all__ = ["CompareCommand", "compare"]

_MARK = "\0--"
_REGRESSION = 1
_SUMMARY = "GITHUB_STEP_SUMMARY"  # where GitHub has the file for a job's summary


class CompareCommand(typer.core.TyperCommand):
    """``--`` stands between the recordings of both sides."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """Two ways to say which is which."""
        return ["[OPTIONS]", "(BASE CANDIDATE | BASE… -- CANDIDATE…)"]

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Keep the mark among the paths."""
        return super().parse_args(context, [_MARK if its == "--" else its for its in arguments])


def _formats() -> list[str]:
    return list(FORMATS)


def _listed(name: str | None) -> str | None:
    if name is None or name in FORMATS:
        return name
    raise typer.BadParameter(f"{name!r} is none of {', '.join(FORMATS)}")


def compare(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE CANDIDATE",
            help="The recording before and the one after a change; of several recordings of each, "
            "all before, `--`, and all after.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the report to this file, in its ending's format; default: print it.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(FORMATS)}]",
            callback=_listed,
            autocompletion=_formats,
            help="The report's format; default: by the ending of --output, else text.",
        ),
    ] = None,
    gate: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PCT",
            help="Exit with status 1 if a step is surely longer by more than this percentage; "
            "default: no gate.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Processes that read files; default: one per CPU core."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with status 1 if it is inconclusive, too; default: with 0."
        ),
    ] = False,
) -> None:
    """Whether steps became slower, where, and whether that is real."""
    base, candidate = _sides(paths)
    chosen = format or _format_of(output)
    from commtrace.comparing.gate import Gate
    from commtrace.comparison import compare as compare_runs

    asked = Gate(gate, strict)
    with progress() as shown:
        its = compare_runs(base, candidate, same_pct=gate, workers=workers, progress=shown).compared
    if output is not None:
        write(output, format_named(chosen).render(its, asked, Look(WIDTH)))
    elif chosen == "github" and (summary := os.environ.get(_SUMMARY)):
        from commtrace.reports.comparison import github, markdown

        append(Path(summary), markdown.render(its, asked))
        say(github.annotation(its, asked))
    else:
        say(format_named(chosen).render(its, asked, look()))
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


def _format_of(output: Path | None) -> str:
    if output is None:
        return "text"
    if (name := format_of_file(output)) is None:
        suffixes = (format_named(one).SUFFIX for one in FORMATS)
        known = ", ".join(suffix for suffix in suffixes if suffix)
        raise UsageError(f"{output}: end its name in one of {known}, or choose one with --format")
    return name
