"""The command line: one function per command, no logic.

Exit status: 0 done, 1 findings under ``--strict``, 2 bad input or usage, an output that cannot
be written, or every rule that was asked broken, with one line on stderr; 130 and 141, in silence,
for Ctrl-C and for a reader that has gone. Whatever is heavy is imported within the commands, so
that ``--help`` costs nothing.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from copy import copy
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.main import get_command_name
from typer.models import CommandInfo

from commtrace import __version__
from commtrace.causal.edit_names import EDITS, beginnings
from commtrace.cli.cache import cache
from commtrace.cli.compare import CompareCommand, compare
from commtrace.cli.light_command import LightCommand, LightGroup, TyperError
from commtrace.cli.opening import open_run
from commtrace.cli.plotting import plot
from commtrace.cli.recording import RecordCommand, record
from commtrace.cli.report_options import Workers, format_of, format_option, output_option
from commtrace.cli.rule_options import (
    Ignore,
    Paths,
    Select,
    Thresholds,
    rule_gists,
    rule_names,
    rules_wanted,
)
from commtrace.cli.streams import WIDTH, asking, fail, indented, look, reading, say, tell, write
from commtrace.errors import CommtraceError, UsageError
from commtrace.reports import FORMATS, Look
from commtrace.viewer import SUFFIXES

__all__ = ["app", "main"]

_FINDINGS = 1
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended
_TIMELINES = f" {' and '.join(SUFFIXES)} are timelines for Perfetto."
_COMPLETE = "_COMMTRACE_COMPLETE"  # set where a shell asks what could come next

app = typer.Typer(
    cls=LightGroup,
    rich_markup_mode=None,  # rich's help takes twice as long as everything else in --help
    pretty_exceptions_enable=False,
)


class ReplayFormat(str, Enum):
    """How ``whatif`` answers."""

    text = "text"
    json = "json"


def _edits_in_words() -> str:
    """The edits, a line each, which click leaves as they are."""
    width = max(map(len, EDITS))
    return "\n".join(("\b", "Edits:", *(f"  {edit:{width}}  {its}" for edit, its in EDITS.items())))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"commtrace {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    sys.stdout = sys.stdout or _closed(os.O_RDONLY)  # what is written to it shall be an error
    sys.stderr = sys.stderr or _closed(os.O_WRONLY)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without the glyphs is no error
    status = _status_of(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # What is left in it is lost, and Python would complain of that once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return status


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    tell(f"commtrace: {message}")


def _status_of(arguments: Sequence[str]) -> int:
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            named = _named(arguments[:1])
            return named(arguments or ["--help"], prog_name="commtrace", standalone_mode=False) or 0
    except CommtraceError as error:
        return fail(str(error))
    except TyperError as error:
        return fail(error.format_message())
    except typer.Abort:
        return _INTERRUPTED
    except SystemExit as stop:
        if _COMPLETE in os.environ or "completion" in "".join(arguments[:1]):
            return 2 if stop.code else 0
        return _BROKEN_PIPE  # typer's only other one: the reader of what it printed has gone
    except OSError as error:
        where = error.filename or "standard output"
        return fail(f"{where}: {error.strerror}: mend that, or use another")


def _named(command: Sequence[str]) -> typer.Typer:
    """With only the command that is named, if there is one: typer takes a while to make each."""
    its = [one for one in app.registered_commands if _name(one) in command]
    only = copy(app)
    only.registered_commands = its or app.registered_commands
    return only


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))


def _closed(mode: int) -> TextIO:
    """In place of a stream that was closed, so that no file gets its number."""
    return open(os.open(os.devnull, mode), "w", encoding="utf-8", closefd=False)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Why communication between GPUs is slow, from PyTorch profiler traces."""


@app.command(cls=LightCommand)
def analyze(
    paths: Paths,
    output: Annotated[Path | None, output_option(_TIMELINES)] = None,
    format: Annotated[str | None, format_option(FORMATS)] = None,  # noqa: A002 - the option's name
    operations: Annotated[
        bool,
        typer.Option(
            "--operations", help="List every matched operation, too (JSON only); default: none."
        ),
    ] = False,
    select: Select = None,
    ignore: Ignore = None,
    thresholds: Thresholds = None,
    workers: Workers = None,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Read all files anew; default: only those that are not in the cache."
        ),
    ] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Read on the workers of this Dask scheduler, as in tcp://10.0.0.1:8786; "
            "default: on this machine.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with status 1 if there are findings; default: with 0."),
    ] = False,
) -> None:
    """Where time went, what communication cost, and what is wrong."""
    timeline = format is None and output is not None and output.name.endswith(SUFFIXES)
    chosen = format or ("" if timeline else format_of(output, FORMATS, *SUFFIXES))
    if operations and chosen != "json":
        raise UsageError("--operations: only JSON lists them; choose --format json")
    from commtrace.engine.dask import on_dask
    from commtrace.run import check_rules, load

    rules = rules_wanted(select, ignore, thresholds)
    check_rules(**rules)
    with on_dask(scheduler) as executor, reading(ranks=scheduler is not None) as shown:
        progress, read_bytes = (shown, None) if executor else (None, shown)
        run = load(
            paths,
            workers=workers,
            progress=progress,
            executor=executor,
            cache=not no_cache,
            read_bytes=read_bytes,
        )
    with asking() as shown:
        analysis = run.analysis(**rules, progress=shown)
    if timeline and output is not None:
        from commtrace.viewer.timeline import write_timeline

        for line in write_timeline(analysis, output):
            tell(line)
    elif output is None:
        say(FORMATS.named(chosen).render(analysis, look(operations=operations)))
    else:
        render = FORMATS.named(chosen).render
        write(output, render(analysis, Look(WIDTH, operations=operations)))
    diagnosis = analysis.verdict.diagnosis
    if diagnosis.all_broke:
        raise CommtraceError(f"no rule could be checked: {diagnosis.notes[0].message}")
    if strict and analysis.verdict.faults:
        raise typer.Exit(_FINDINGS)


app.command(cls=CompareCommand)(compare)


@app.command(cls=LightCommand, epilog=_edits_in_words())
def whatif(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="A trace file, a folder of one run's, or a glob."),
    ],
    edits: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="EDIT",
            autocompletion=beginnings,
            help="What to change, each on top of those before; default: nothing, which shows "
            "where the time goes and lists the edits.",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        ReplayFormat, typer.Option(help="The report's format.")
    ] = ReplayFormat.text,
) -> None:
    """What a change would save: the run replayed with it."""
    from commtrace.reports.whatif import as_json, as_text
    from commtrace.run import load

    with reading() as shown:
        run = load(path, read_bytes=shown)
    replayed = run.replayed(edits or ())
    say(as_json(replayed) if format is ReplayFormat.json else as_text(replayed, look()))


@app.command(cls=LightCommand)
def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="RULE",
            autocompletion=rule_names,
            help="The rule to explain; default: a list of all.",
        ),
    ] = None,
) -> None:
    """What a rule detects, why it matters, and its blind spots."""
    if rule is None:
        from commtrace.reports.wrapping import wrapped

        for name, gist in rule_gists().items():
            say(f"{wrapped(f'{name}: {gist}', look().width, rest='    ')}\n")
    else:
        from commtrace.reports.formats import text
        from commtrace.rules import explanation

        say(text.explain(explanation(rule), look()))


app.command(cls=LightCommand)(plot)


app.command(cls=RecordCommand)(record)
app.command(cls=LightCommand)(cache)


@app.command(cls=LightCommand)
def workloads() -> None:
    """The workloads to record: what each asks, and its settings."""
    from commtrace.record.workloads import available

    for workload in available():
        settings = " ".join(f"{name}={default}" for name, default in workload.settings.items())
        say(f"{workload.name}\n{indented(workload.question)}\n{indented(settings)}\n\n")


app.command("open", cls=LightCommand)(open_run)
