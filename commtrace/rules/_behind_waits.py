"""Communication that a host calls only when it has waited for its GPU."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes
from commtrace.causal.rank.moments import Moments
from commtrace.metrics.rank.exposed_calls import exposed_ns
from commtrace.metrics.rank.phases import launching_threads
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["behind_waits"]

_SYNCHRONISES = re.compile(r"(?:cuda|cu|hip)(?:Stream|Device|Ctx)Synchronize")
"""Not of events: FSDP limits so how many gathers are under way."""
_LONG_NS = 50_000
_SOON_NS = 300_000
_MOSTLY = 0.5  # of what is exposed of them


def behind_waits(run: Measures, rows: Int64) -> str:
    """What to say first where most of what these ``collectives`` expose is called behind waits.

    Those that the host calls right after it has waited for its GPU, for longer than a call takes:
    by then all that could hide them is done.
    """
    calls, waits = run.rows("collectives", rows), run.rows("blocking_calls")
    blocks = waits.coded("name").where(lambda name: _SYNCHRONISES.fullmatch(name) is not None)
    blocks |= _copies_to_host(run, waits)
    long = np.flatnonzero(blocks & (waits.ints("duration_ns") >= _LONG_NS))
    thread = launching_threads(run).values(rows)
    known = np.flatnonzero((calls.ints("launch_ns") != NULL) & (thread != NULL))
    if not long.size or not known.size:
        return ""
    waits, calls, rows = waits.take(long), calls.take(known), rows[known]
    ends_ns, launch_ns = waits.when()[1], calls.ints("launch_ns")
    rank, on = (waits.ints("rank"), calls.ints("rank")), (waits.ints("thread"), thread[known])
    waiting, calling = np.split(codes(*map(np.concatenate, (rank, on))), [long.size])
    last = Moments(waiting, ends_ns).last(calling, launch_ns)
    behind = (last >= 0) & (launch_ns - ends_ns[last] <= _SOON_NS)
    each_ns = exposed_ns(run, rows)
    if each_ns[behind].sum() <= _MOSTLY * each_ns.sum():
        return ""
    names = waits.coded("name").take(last[behind]).decoded()
    most = Counter(names).most_common(1)[0][0]
    return (
        f"the host waits for its GPU ({most}, as for .item() or .cpu()) right before it calls most "
        "of them, so that nothing is left to hide them: take these waits out of the step; else: "
    )


def _copies_to_host(run: Measures, calls: Rows) -> Bool:
    """Which of these calls launch a copy to the host."""
    copies = run.rows("copies")
    copies = copies.take(copies.coded("kind").being("DtoH"))
    rank = np.append(copies.ints("rank"), calls.ints("rank"))
    called = codes(rank, np.append(copies.ints("launch_ns"), calls.ints("start_ns")))
    return np.isin(called[len(copies) :], called[: len(copies)])
