"""The command line: one function per command, no logic.

Exit status: 0 done, 1 findings under ``--strict``, 2 bad input or usage, an output that cannot
be written, or every rule that was asked broken, with one line on stderr; 130 and 141, in silence,
for Ctrl-C and for a reader that has gone. Whatever is heavy is imported within the commands, so
that ``--help`` costs nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from io import TextIOWrapper
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
import typer.core

from commtrace import __version__
from commtrace.errors import CommtraceError, UsageError
from commtrace.reports import FORMATS, Look, format_named, format_of_file
from commtrace.units import clean

if TYPE_CHECKING:
    pass

__all__ = ["app", "main"]

_FINDINGS = 1
_WIDTH = 100  # of a text that goes to no terminal
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # as the shell reports a program that SIGPIPE ended
# The base of typer's usage errors, in whichever click it uses.
_TyperError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    rich_markup_mode=None,  # rich's help takes twice as long as everything else in --help
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Backend(str, Enum):
    """What communicates."""

    gloo = "gloo"
    nccl = "nccl"


def _listed(name: str | None) -> str | None:
    """The name of a format, if there is one of that name."""
    if name is None or name in FORMATS:
        return name
    raise typer.BadParameter(f"{name!r} is none of {', '.join(FORMATS)}")


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


def _status_of(arguments: Sequence[str]) -> int:
    try:
        return app(arguments or ["--help"], prog_name="commtrace", standalone_mode=False) or 0
    except CommtraceError as error:
        return _fail(str(error))
    except _TyperError as error:
        return _fail(error.format_message())
    except typer.Abort:
        return _INTERRUPTED
    except SystemExit:  # typer's only one: the reader of what it printed has gone
        return _BROKEN_PIPE
    except OSError as error:
        where = error.filename or "standard output"
        return _fail(f"{where}: {error.strerror}: mend that, or use another")


def _closed(mode: int) -> TextIO:
    """In place of a stream that was closed, so that no file gets its number."""
    return open(os.open(os.devnull, mode), "w", encoding="utf-8", closefd=False)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")
    ] = False,
) -> None:
    """Why communication between GPUs is slow, from PyTorch profiler traces."""


@app.command()
def analyze(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Trace files, folders or globs.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write there; the name's ending says the format."),
    ] = None,
    format: Annotated[  # noqa: A002 - the option's name
        str | None,
        typer.Option(
            metavar=f"[{'|'.join(FORMATS)}]",
            callback=_listed,
            help="By default as the output's name says, else text.",
        ),
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="List every matched operation (JSON only).")
    ] = False,
    select: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Ask this rule only; repeatable.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Do not ask this rule; repeatable.")
    ] = None,
    thresholds: Annotated[
        list[str] | None,
        typer.Option(
            "--threshold", metavar="RULE.FIELD=VALUE", help="Set one; see `commtrace explain RULE`."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="How many processes read files; by default one per core."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with status 1 if there are findings.")
    ] = False,
) -> None:
    """Where the time of a run went, what its communication cost, and what is wrong."""
    chosen = format or _format_of(output)
    if operations and chosen != "json":
        raise UsageError("--operations: only JSON lists them; choose --format json")
    from commtrace.reader.workers import cores
    from commtrace.run import check_rules, load

    rules: dict[str, Any] = {
        "select": select or (),
        "ignore": ignore or (),
        "thresholds": _thresholds(thresholds or ()),
    }
    check_rules(**rules)
    with _progress() as progress:
        # Whatever their number, they are processes: a fault in one is a line, and costs a file.
        run = load(paths, workers=workers or cores(), progress=progress)
    analysis = run.analysis(**rules)
    render = format_named(chosen).render
    if output is None:
        _print(render(analysis, _look(operations=operations)))
    else:
        _write(output, render(analysis, Look(_WIDTH, operations=operations)))
    diagnosis = analysis.verdict.diagnosis
    if diagnosis.all_broke:
        raise CommtraceError(f"no rule could be checked: {diagnosis.notes[0].message}")
    if strict and analysis.verdict.faults:
        raise typer.Exit(_FINDINGS)


@app.command()
def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="By default, a list.")] = None,
) -> None:
    """What a rule finds, why it matters, its blind spots, and a worked example."""
    from commtrace.reports.content import prose
    from commtrace.reports.formats import text
    from commtrace.rules import RULES, explanation

    if rule is None:
        for name, its in RULES.items():
            _print(f"{name}: {prose.first_line(its.__doc__ or '')}\n")
    else:
        _print(text.explain(explanation(rule), _look()))


class _RecordCommand(typer.core.TyperCommand):
    """What stands behind ``--`` is a program and its arguments, and none of ours."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        if "--" in arguments:
            mark = arguments.index("--")
            context.obj = arguments[mark + 1 :]
            arguments = arguments[:mark]
        return super().parse_args(context, arguments)


@app.command(cls=_RecordCommand, options_metavar="[OPTIONS] (WORKLOAD | -- PROGRAM ARGS…)")
def record(
    context: typer.Context,
    workload: Annotated[
        str | None, typer.Argument(metavar="WORKLOAD", help="Its name, or a Python file.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="One of the workload's settings."),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option("-n", "--world-size", min=1, help="How many ranks; of several nodes, here."),
    ] = None,
    backend: Annotated[
        Backend | None,
        typer.Option(help="Of a workload; by default nccl with a GPU for each rank, else gloo."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The folder; default traces/WORKLOAD/BACKEND-N."),
    ] = None,
    start_step: Annotated[
        int | None, typer.Option(help="The program's step to begin with; default 5.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="How many of its steps to record; default 3 to 8, within 10 s."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Record steps of the program for so long instead.")
    ] = None,
    on_signal: Annotated[
        bool, typer.Option("--on-signal", help="Begin at the step after SIGUSR1 instead.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds in one operation after which a rank hangs: 1800, or 60."),
    ] = None,
    nnodes: Annotated[int, typer.Option(min=1, help="How many nodes, as torchrun has it.")] = 1,
    node_rank: Annotated[int, typer.Option(min=0, help="Which of them this is.")] = 0,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where node 0 listens.")
    ] = None,
) -> None:
    """Record a workload, or a program of your own: a trace per rank, and a manifest.

    A program runs to its end as under torchrun, and some of its steps are profiled: those of
    its first optimizer, or what it ends with commtrace.step().
    """
    chosen = dict(map(_setting, settings or ()))
    window = {
        "--start-step": start_step,
        "--steps": steps,
        "--seconds": seconds,
        "--on-signal": on_signal or None,
    }
    _same_kind(context.obj, workload, window, {"--set": settings, "--backend": backend})
    from commtrace import record as recorder

    common: dict[str, Any] = {
        "world_size": world_size,
        "out": output,
        "place": recorder.Place.of(nnodes, node_rank, rdzv_endpoint),
        **({} if timeout is None else {"timeout_s": timeout}),
    }
    try:
        if workload is None:
            told = {"first": start_step, "steps": steps}
            plan = recorder.Plan(
                seconds=seconds,
                on_signal=on_signal,
                **{name: value for name, value in told.items() if value is not None},
            )
            folder = recorder.record_program(context.obj, plan=plan, tell=_tell, **common)
        else:
            folder = recorder.record(
                workload, settings=chosen, backend=backend and backend.value, **common
            )
    except recorder.Interrupted as stop:
        _fail(str(stop))
        raise typer.Exit(stop.status) from None
    _print(f"{folder}\n")
    _tell(f"Now: commtrace analyze {shlex.quote(str(folder))}")


@app.command()
def workloads() -> None:
    """The workloads that come with it, and what each asks."""
    from commtrace.record.workloads import available

    for workload in available():
        settings = " ".join(f"{name}={default}" for name, default in workload.settings.items())
        _print(f"{workload.name}\n{_indented(workload.question)}\n{_indented(settings)}\n\n")


@app.command("open")
def open_recording(
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH", help="Trace files, folders or globs.")
    ],
) -> None:
    """Show a recording in Perfetto, all ranks on one time axis."""
    from commtrace.viewer import open_in_perfetto

    open_in_perfetto(paths, tell=_tell)


def _format_of(output: Path | None) -> str:
    if output is None:
        return "text"
    if (name := format_of_file(output)) is None:
        known = ", ".join(format_named(one).SUFFIX for one in FORMATS)
        raise UsageError(f"{output}: end its name in one of {known}, or choose one with --format")
    return name


def _look(**more: Any) -> Look:
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Look(color=color, width=get_terminal_size((_WIDTH, 24)).columns, **more)


def _thresholds(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    thresholds: dict[str, dict[str, str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        rule, dot, field = key.partition(".")
        if not (rule and dot and field and equals):
            raise UsageError(f"--threshold {text}: write it as RULE.FIELD=VALUE")
        thresholds.setdefault(rule, {})[field] = value
    return thresholds


def _same_kind(
    program: Sequence[str] | None,
    workload: str | None,
    of_programs: Mapping[str, object],
    of_workloads: Mapping[str, object],
) -> None:
    if (program is None) == (workload is None):
        raise UsageError("name a workload, or a program behind --: commtrace record -- train.py")
    wrong = of_programs if program is None else of_workloads
    given = [name for name, value in wrong.items() if value]
    if given:
        kind = "a program behind --" if program is None else "a workload"
        raise UsageError(f"{given[0]} is for {kind}")


def _tell(line: str) -> None:
    with suppress(OSError):  # nobody can be told of that
        typer.echo(line, err=True)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--set {text}: write it as KEY=VALUE")
    return key, value


@contextmanager
def _progress() -> Iterator[Callable[[int, int], object] | None]:
    """Shows on stderr how many files are read; only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, files: bar.update(task, completed=done, total=files)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write(path: Path, text: str) -> None:
    """Write a file wholly or not at all; what is no file, a pipe or a device, directly."""
    try:
        is_file = path.is_file() or not path.exists()
        target = path.resolve()  # a link stays one
        written = target.with_name(f"{target.name}.part") if is_file else path
        try:
            written.write_text(text, encoding="utf-8", errors="replace")
            if is_file:
                written.replace(target)
        finally:
            if is_file:
                written.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}: make room, or name another with -o"
        ) from None


def _fail(message: str) -> int:
    _tell(f"commtrace: {clean(' '.join(message.split()), limit=2000)}")
    return 2


def _indented(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
