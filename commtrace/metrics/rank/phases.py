"""In which phase of training an operation was launched: forward, backward, optimizer."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, integers
from commtrace.measures import measure, taken
from commtrace.metrics.rank.rank_threads import rank_threads
from commtrace.metrics.rank.rows_of import measured_ranks, places_of_ranks, ranks_of

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["launching_threads", "phases"]

_WORDS = {
    "forward": "forward",
    "fwd": "forward",
    "backward": "backward",
    "bwd": "backward",
    "optimizer": "optimizer",
    "optim": "optimizer",
}
_WORD = re.compile(r"[A-Z]?[a-z]+")
_AUTOGRAD = "autograd::engine::evaluate_function"


@measure
def phases(run: Measures) -> list[str | None]:
    """The phase of each row of ``trace.collectives``; None if unknown it.

    What tells it, best first, at the time of the launch on the same rank:

    1. the innermost labelled range whose name is of one phase: ``## forward ##``,
       ``DistributedDataParallel.forward``, ``Optimizer.step#SGD.step``, ``FSDP::post_backward``;
    2. a running ``autograd::engine::evaluate_function``: backward. Only traces of CPUs keep it;
    3. a launch from a thread that no ``ProfilerStep`` is a range of: backward, as PyTorch runs
       that of a GPU on threads of its own. A program with threads of its own that
       communicate is misread here, unless it labels what they do.

    What the program's own thread launches is of no phase without a label: forward and, say,
    an all_gather before the optimizer look the same.
    """
    found = np.full(len(run.collective_columns), None, dtype=object)
    launched = run.collective_columns[["rank", "launch_ns"]].assign(
        row=np.arange(found.size), thread=launching_threads(run)
    )
    if launched["thread"].notna().any():
        found[_away(launched, run.steps)] = "backward"
    ranges: dict[Any, list[_Range]] = defaultdict(list)
    for one in (*_autograd(run.ops), *_labels(run.steps)):
        ranges[one.rank].append(one)
    calls = launched[launched["launch_ns"].notna() & launched["rank"].isin([*ranges])]
    for rank, its in calls.sort_values("launch_ns").groupby("rank", sort=False):
        launch_ns, row = its["launch_ns"].to_numpy(dtype=np.int64), its["row"].to_numpy()
        for one in ranges[rank]:
            first, last = np.searchsorted(launch_ns, (one.start_ns, one.end_ns))
            found[row[first:last]] = one.phase
    return list(found)


class _Range(NamedTuple):
    rank: int
    start_ns: int
    end_ns: int
    phase: str


@measure
def launching_threads(run: Measures) -> Any:
    """The thread that launched the kernel of each row of collectives; NA if unknown."""
    found = np.full(len(run.collective_columns), NULL)
    for ranks in measured_ranks(run) if ranks_of(run, "kernels") else ():
        its = taken(rank_threads, run, *ranks)
        found[places_of_ranks(run, "collectives", ranks)] = its["thread"]
    return pd.arrays.IntegerArray(found, found == NULL)


def _away(launched: pd.DataFrame, steps: pd.DataFrame) -> pd.Series[int]:
    """The rows that were launched from a thread that is none of the steps' of their rank."""
    own = steps.loc[steps["label"].isna(), ["rank", "thread"]]
    known = launched["launch_ns"].notna() & launched["thread"].notna()
    launched = launched[known & launched["rank"].isin(own["rank"])].astype({"thread": "int64"})
    at = pd.MultiIndex.from_frame(launched[["rank", "thread"]])
    return launched["row"][~at.isin(pd.MultiIndex.from_frame(own))]


def _autograd(ops: pd.DataFrame) -> Iterator[_Range]:
    names = ops["name"].cat.categories
    return _ranges(ops, "name", {its: "backward" for its in names if its.startswith(_AUTOGRAD)})


def _labels(steps: pd.DataFrame) -> Iterator[_Range]:
    phases = ((name, _phase(name)) for name in steps["label"].cat.categories)
    return _ranges(steps, "label", {name: phase for name, phase in phases if phase})


def _ranges(events: pd.DataFrame, name: str, phase_of: dict[str, str]) -> Iterator[_Range]:
    """The events whose name tells a phase; who encloses another comes before it."""
    if not phase_of:
        return iter(())
    phases = [*(phase_of.get(its) for its in events[name].cat.categories), None]
    number = events[name].cat.codes.to_numpy()
    at = np.flatnonzero(np.asarray([phase is not None for phase in phases])[number])
    rank, start, duration = (
        integers(events[column])[at] for column in ("rank", "start_ns", "duration_ns")
    )
    order = np.lexsort((-duration, start))
    columns = (rank, start, start + duration, np.asarray(phases, dtype=object)[number[at]])
    return map(_Range, *(column[order].tolist() for column in columns))


def _phase(label: str) -> str | None:
    words = (_WORDS.get(word.lower()) for word in _WORD.findall(label))
    found = {word for word in words if word}
    return found.pop() if len(found) == 1 else None
