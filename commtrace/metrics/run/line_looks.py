"""Where in the program a rank's thread was, as the recorder looked at it now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64
from commtrace.intervals import Intervals, inside
from commtrace.metrics.run.machines import machines

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["LineLooks", "line_during", "line_looks"]


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
    every = np.asarray(lines.looks, dtype=np.int64).reshape(-1, 4)
    known = every[every[:, 1] < len(lines.names)]
    return LineLooks(tuple(lines.names), *known[np.argsort(known[:, 0], kind="stable")].T)


def line_during(run: Measures, rank: int, when: Intervals) -> str | None:
    """The line that a rank's thread is mostly at in a merged set of times, on its own clock.

    None where no look tells.
    """
    its = line_looks(run, rank)
    there = np.zeros(0, np.bool_) if its is None else inside(its.at_ns, when)
    if its is None or not there.any():
        return None
    return its.names[int(np.bincount(its.line[there], its.passed_us[there]).argmax())]
