"""Where in the program a rank's thread was, as the recorder looked at it now and then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.intervals import Intervals, inside
from commtrace.metrics.run.machines import machines

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["LineLooks", "by_function", "line_during", "line_looks"]

_NUMBER = re.compile(r":\d+")


class LineLooks(Struct, frozen=True, eq=False):
    """Looks in their order: when each was (``at_ns``, on the rank's own clock), and at which line.

    ``line`` is the number of one of ``names``. Of the time since the look before it are all that
    ``passed_us``, and what the thread ``ran_us``.
    """

    names: tuple[str, ...]
    at_ns: Int64
    line: Int64
    passed_us: Int64
    ran_us: Int64


def line_looks(run: Measures, rank: int) -> LineLooks | None:
    """Those at a rank's thread; None where the recorder took none."""
    machine = machines(run).get(rank)
    lines = None if machine is None else machine.lines
    if lines is None:
        return None
    every = np.frombuffer(lines.looks, dtype=np.int64).reshape(-1, 4)
    known = every[every[:, 1] < len(lines.names)]
    return LineLooks(tuple(lines.names), *known[np.argsort(known[:, 0], kind="stable")].T)


def by_function(names: Sequence[str], line: Int64, time_ns: Int64) -> tuple[list[str], Int64]:
    """For functions that looks are at its line with most of the time, and which each look is in.

    ``line`` is the number of one of ``names``.
    """
    functions = dict[str, int]()
    of_name = [
        functions.setdefault(_NUMBER.sub("", name.split(", ")[0]), len(functions)) for name in names
    ]
    longest_last = np.argsort(np.bincount(line, time_ns, len(names)), kind="stable").tolist()
    most = {of_name[number]: names[number] for number in longest_last}
    lines = [most[number] for number in range(len(functions))]
    return lines, np.asarray(of_name, dtype=np.int64)[line]


def line_during(run: Measures, rank: int, when: Intervals) -> str | None:
    """The line that a rank's thread is mostly at in a merged set of times, on its own clock.

    None where no look tells.
    """
    its = line_looks(run, rank)
    there = np.zeros(0, np.bool_) if its is None else inside(its.at_ns, when)
    if its is None or not there.any():
        return None
    return its.names[int(np.bincount(its.line[there], its.passed_us[there]).argmax())]
