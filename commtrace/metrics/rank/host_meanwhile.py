"""What a rank's host ran at some times; where GPUs work only its file tells, read once more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.errors import TraceError
from commtrace.intervals import Intervals, covered, intersect, total, union
from commtrace.measures import measure
from commtrace.metrics.rank.rank_file import file_of
from commtrace.reader.json import Hosted, host_operators
from commtrace.reader.nesting import outermost

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["HostMeanwhile", "host_meanwhile", "outermost_operators"]


class HostMeanwhile(Struct, frozen=True):
    """For how long the host ran ``operators`` that no others call, by name, longest first.

    ``none_ns`` is how long it ran none, on no thread.
    """

    operators: tuple[tuple[str, int], ...]
    none_ns: int


def host_meanwhile(run: Measures, rank: int, when: Intervals) -> HostMeanwhile | None:
    """What a rank's host ran in a merged set of times, on the rank's own clock.

    None where its file cannot be read again, or is one of several.
    """
    its = _outermost(run, rank)
    if its is None:
        return None
    start, end, name = its.start_ns, its.start_ns + its.duration_ns, its.name
    time = np.bincount(name.codes, covered(start, end, when), minlength=len(name.names))
    order = np.argsort(-time, kind="stable")[: np.count_nonzero(time)].tolist()
    return HostMeanwhile(
        operators=tuple((name.names[code], int(time[code])) for code in order),
        none_ns=total(when) - total(intersect(union(start, end), when)),
    )


@measure
def _outermost(run: Measures, rank: int) -> Hosted | None:
    """The operators of a rank's file that no others call."""
    file = file_of(run, rank)
    return None if file is None else outermost_operators(file)


def outermost_operators(file: Path) -> Hosted | None:
    """The operators of a file that no others call; None where it cannot be read again."""
    try:
        its = host_operators(file)
    except TraceError:
        return None
    top = np.flatnonzero(outermost(its.thread, its.start_ns, its.duration_ns))
    return Hosted(its.name.take(top), its.thread[top], its.start_ns[top], its.duration_ns[top])
