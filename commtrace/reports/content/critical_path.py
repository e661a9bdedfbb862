"""Where the steps' time goes, as the reports for people say it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import sums
from commtrace.causal.path_causes import labelled_on_path, lines_on_path
from commtrace.causal.run.replayable import need_replay, replayable
from commtrace.causal.steps import path_of
from commtrace.diagnosis import CannotLook
from commtrace.metrics.run.whole import has_steps
from commtrace.quantiles import median
from commtrace.reports.content.tables import Section
from commtrace.trace_tables import MISSING_RANK
from commtrace.units import clean, duration, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["CAUSE_NAMES", "lacking", "median_step_ns", "of_run", "section", "sentence", "shares"]

CAUSE_NAMES: Mapping[str, str] = {
    "loader": "data loading",
    "checkpoint": "checkpointing",
    "garbage-collection": "garbage collection",
}

_SHOWN = 8
_SMALL, _LONG = 0.005, 0.05  # of the path


def sentence(run: Measures) -> str | None:
    """What is on the critical path of a step; None where it is not known for sure.

    It is not where too many waits are not in the trace: they would count as a host's own work.
    """
    path = path_of(run) if replayable(run) else None
    if path is None or not len(path):
        return None
    return f"Critical path{_of_step(path, run)}: {of_run(path, run)}."


def _of_step(path: Rows, run: Measures) -> str:
    if not has_steps(run):
        return ""
    several = np.unique(path.ints("step")).size > 1
    long = ms(median_step_ns(path))
    return f" of a step, {long} in the median" if several else f" of the step of {long}"


def median_step_ns(path: Rows) -> float:
    """How long a step of the critical path is."""
    steps, number = np.unique(path.ints("step"), return_inverse=True)
    return median(sums(number, path.ints("time_ns"), steps.size))


def lacking(run: Measures) -> str | None:
    """Why nothing is known of a path of ranks that communicate; None where there are none."""
    if len(run.rows("ranks")) < 2 or not len(run.rows("collectives")):
        return None
    try:
        need_replay(run)
    except CannotLook as reason:
        return f"No critical path: it {clean(str(reason))}."
    return None


def of_run(path: Rows, run: Measures) -> str:
    """The kinds of a run's path as measured, with what is known of the host's."""
    named = {CAUSE_NAMES[cause]: time for cause, time in labelled_on_path(run).items()}
    lines = lines_on_path(run)
    if lines:
        most = max(lines, key=lambda line: lines[line])
        named[f"at {clean(most.split(', ')[0].rpartition('/')[2])}"] = lines[most]
    return shares(path, run, named)


def shares(path: Rows, run: Measures, named: Mapping[str, int] | None = None) -> str:
    """The kinds of a path, the longest first, those below half a percent left out.

    Of transfers also the operations, if several have a twentieth of the path, and of the host's
    what is ``named``, in ns, if that has as much. Where ranks have no file, transfers may be
    waiting for these.
    """
    whole = int(path.ints("time_ns").sum())
    ops = _of(path.take(path.coded("kind").being("transfer")), "op", _LONG * whole)
    causes = Counter(named or {})
    parts = {
        "transfer": ops if len(ops) > 1 else [],
        "host": [its for its in causes.most_common() if its[1] >= _LONG * whole],
    }
    detail = {
        kind: f" ({', '.join(f'{name} {percent(time, whole)}' for name, time in some)})"
        for kind, some in parts.items()
        if some
    }
    missing = any(note.code == MISSING_RANK for note in run.notes)
    names = {"transfer": "transfer or waiting"} if missing else {}
    return ", ".join(
        f"{percent(time, whole)} {names.get(kind, kind)}{detail.get(kind, '')}"
        for kind, time in _of(path, "kind", _SMALL * whole)
    )


def _of(path: Rows, column: str, least_ns: float) -> list[tuple[str, int]]:
    """The values of a column, each with its time, the longest first."""
    path = path.take(path.coded(column).known)
    its = path.coded(column)
    total = sums(its.codes.astype(np.int64), path.ints("time_ns"), len(its.names))
    times = dict(zip(its.names, total.tolist(), strict=True))
    longest_first = sorted(its.occurring(), key=lambda name: -times[name])
    return [(name, times[name]) for name in longest_first if times[name] >= least_ns]


_FOOTER = (
    "transfer: all ranks were there; launch: from call to start; host: no operator ran, or, "
    "with GPUs, what the host does between launches."
)


def section(path: Rows, title: str, steps: int) -> Section:
    """How long each rank did what on the critical path, in the mean of so many steps."""
    ranks, rank = np.unique(path.ints("rank"), return_inverse=True)
    kind, kinds = path.coded("kind"), path.coded("kind").occurring()
    place = rank * len(kind.names) + kind.codes
    by = sums(place, path.ints("time_ns"), ranks.size * len(kind.names))
    by = by.reshape(ranks.size, -1)[:, [kind.names.index(name) for name in kinds]]
    by = np.column_stack((by, by.sum(axis=1)))
    longest = np.sort(np.argsort(-by[:, -1], kind="stable")[:_SHOWN])
    lines = [(str(ranks[at]), by[at]) for at in longest.tolist()]
    if ranks.size > 1:
        lines.append(("all", by.sum(axis=0)))
    footer = [_FOOTER]
    if ranks.size > longest.size:
        footer.insert(0, f"The {_SHOWN} ranks with most of it.")
    return Section(
        title,
        (("rank", ">"), *((kind, ">") for kind in kinds), ("sum", ">")),
        [
            [name, *(duration(round(time / steps)) for time in times.tolist())]
            for name, times in lines
        ],
        tuple(footer),
    )
