"""One function over many items: in this process, in a pool of them, or on any Executor.

Whoever does it, the function and its items are the same, and so are the results; they come in
the order in which they get done. What is lost with a process is done once more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from commtrace.engine.attempt import Lost, attempt

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["HERE", "Lost", "attempt", "can_fork", "cores", "each", "for_files"]

_T = TypeVar("_T")
_R = TypeVar("_R")

HERE = 0
"""Processes beside this one, where it does all itself."""
_SMALL_BYTES = 1 << 19  # all files together: reading them takes less than starting a process


def cores() -> int:
    """How many there are for this process."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def for_files(files: Collection[Path]) -> int:
    """How many processes pay to read these files: one for each, as far as there are cores."""
    return HERE if sum(map(_bytes, files)) <= _SMALL_BYTES else min(len(files), cores())


def _bytes(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # whoever reads it will say so


def can_fork() -> bool:
    """Whether this process can have others beside it."""
    from commtrace.engine import pool

    return pool.can_fork()


def each(
    function: Callable[[_T], _R],
    items: Sequence[_T],
    where: Executor | int = HERE,
    meanwhile: Callable[[], object] = lambda: None,
    refused: Callable[[OSError], object] = lambda _: None,
) -> Iterator[tuple[_T, _R | Lost]]:
    """Every item with what the function makes of it, in the order they get done.

    ``where`` is a number of processes, which are forked at once; or an Executor, whose processes
    need not be on this machine. An error of the function costs its own item only, and so does a
    process that dies, if another dies of the same item. ``meanwhile`` is called once while
    others work, ``refused`` where a process cannot be forked, and there are fewer, or none.
    """
    # Most runs need neither, and both take long to import.
    if not isinstance(where, int):
        from commtrace.engine.executor import on_executor

        yield from on_executor(function, items, where, meanwhile)
    elif where == HERE:
        yield from ((item, attempt(function, item)) for item in items)
    else:
        from commtrace.engine.pool import in_pool

        yield from in_pool(function, items, where, meanwhile, refused)
