"""What a command reads and writes: standard output and error, a file, the terminal's look."""

from __future__ import annotations

import errno
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import typer

from commtrace.errors import UsageError
from commtrace.reports import Look
from commtrace.units import clean

__all__ = [
    "WIDTH",
    "append",
    "asking",
    "fail",
    "indented",
    "look",
    "reading",
    "say",
    "tell",
    "write",
]

WIDTH = 100
"""Of a text that goes to no terminal."""


def say(text: str) -> None:
    """Print the result at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(line: str) -> None:
    """A line for the user, beside the result."""
    with suppress(OSError):  # nobody can be told of that
        typer.echo(line, err=True)


def fail(message: str) -> int:
    """Say on one line what went wrong; returns the exit status."""
    tell(f"commtrace: {clean(' '.join(message.split()), limit=2000)}")
    return 2


def write(path: Path, content: str | bytes) -> None:
    """Write a file wholly or not at all; what is no file, a pipe or a device, directly."""
    try:
        is_file = path.is_file() or not path.exists()
        target = path.resolve()  # a link stays one
        written = target.with_name(f"{target.name}.part") if is_file else path
        try:
            if isinstance(content, str):
                content = content.encode("utf-8", "replace")
            written.write_bytes(content)
            if is_file:
                written.replace(target)
        finally:
            if is_file:
                written.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritten(path, error) from None


def append(path: Path, text: str) -> None:
    """Write behind what a file has."""
    try:
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except OSError as error:
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: OSError) -> UsageError:
    do = "name another with -o"
    if isinstance(error, FileNotFoundError):
        do = f"make its folder first, or {do}"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        do = f"make room, or {do}"
    return UsageError(f"{path}: cannot be written: {error.strerror}: {do}")


def look(**more: Any) -> Look:
    """How the terminal is, or is to be taken for."""
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Look(color=color, width=get_terminal_size((WIDTH, 24)).columns, **more)


@contextmanager
def reading(ranks: bool = False) -> Iterator[Callable[[int, int], object] | None]:
    """What ``load`` calls with the bytes read of all, or with the ``ranks``, to show them.

    With the time that is left; on stderr, and only on a terminal.
    """
    with _shown("reading ranks" if ranks else "reading", in_bytes=not ranks, left=True) as shown:
        yield shown


@contextmanager
def asking() -> Iterator[Callable[[int, int], object] | None]:
    """What ``analysis`` calls with the rules asked of all, to show them; where ``reading`` does.

    With the time since: what the first rule needs others need, too, so nobody knows what is left.
    """
    with _shown("asking rules", in_bytes=False, left=False) as shown:
        yield shown


@contextmanager
def _shown(
    what: str, *, in_bytes: bool, left: bool
) -> Iterator[Callable[[int, int], object] | None]:
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(what),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn() if left else TimeElapsedColumn(),
        TextColumn("left" if left else ""),
    )
    # Large files take minutes each: what is left is known from all that were read.
    console, always = Console(stderr=True), float("inf")
    with Progress(*columns, console=console, transient=True, speed_estimate_period=always) as bar:
        task = bar.add_task("", total=None, visible=False)

        yield lambda done, all_: bar.update(task, completed=done, total=all_, visible=True)


def indented(text: str) -> str:
    """A paragraph below what it belongs to."""
    width = min(look().width, WIDTH)
    return textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ")
