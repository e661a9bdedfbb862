"""Asynchronous communication is waited for before the work that could hide it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import Int64
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.rank.rows_of import rows_of_device
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import counted, cut, ms

if TYPE_CHECKING:
    from commtrace.intervals import Intervals
    from commtrace.measures import Measures

_AT_ONCE_NS = 200_000
_AT_ONCE = 0.25  # of the operation's time: where cores are scarce a thread wakes later
_MOSTLY = 0.8
_NAME = 40  # characters
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class FalseOverlap(Rule):
    """A call is asynchronous, yet its result is waited for before other work runs.

    What it detects
        Calls with ``async_op=True``, at least ``min_operations`` of one kind under one label,
        of which at least four fifths hide nothing: the device (gloo: the calling thread) does
        next to nothing until they are done, then computes at once. What that compute could
        have hidden is at least ``min_step_share`` of the steps' time.

    Why it costs time
        The call is written to overlap and does not: communication and compute run in turn.

    What to do
        Move ``wait()`` after the work that does not need the result.

    Blind spots
        Whether the compute after it needs the result: then it is no fault. A wait has no
        event: it is inferred from the idle time until the operation's end. Which calls are
        asynchronous is known only from recorded shapes (``record_shapes=True``).
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of call and label."""
        if run.collectives["asynchronous"].isna().all():
            raise CannotLook(
                "needs to know which calls are asynchronous: record with record_shapes=True"
            )
        calls = _calls(run)
        found = []
        for _, mine in calls.groupby(["op", "group", "label"], observed=True, dropna=False):
            blocked = mine[mine["blocked"]]
            cost = float(blocked.groupby("rank")["regained_ns"].sum().median())
            mostly = len(blocked) >= _MOSTLY * len(mine)
            if mostly and worth_reporting(cost, run, self.min_step_share):
                found.append((len(blocked), (blocked, len(mine), round(cost))))
        which = "of one kind that hide nothing"
        for blocked, many, saved in enough(found, self.min_operations, "call", which):
            yield self._finding(blocked, many, saved, run)

    def _finding(self, blocked: pd.DataFrame, calls: int, cost: int, run: Measures) -> Finding:
        first = blocked.iloc[0]
        made = counted(calls, f"asynchronous {first['op']} call")
        are = "is" if len(blocked) == 1 else "are"
        where = "" if pd.isna(first["label"]) else f" in '{cut(str(first['label']), _NAME)}'"
        share = share_pct(cost, run)
        return self.finding(
            blocked,
            summary=(
                f"{len(blocked)} of {made}{where} {are} waited for before any other work runs: "
                f"{ms(cost)} could be hidden"
            ),
            ranks=tuple(sorted({int(rank) for rank in blocked["rank"]})),
            cost_ns=cost,
            evidence=(
                Evidence(
                    "asynchronous calls that hide nothing",
                    len(blocked),
                    "operations",
                    self.min_operations,
                ),
                Evidence("median time blocked", float(blocked["blocked_ns"].median()), "ns"),
                Evidence("compute right after them", float(blocked["behind_ns"].median()), "ns"),
                Evidence(f"could be hidden, {of_time(run)}", share, "%", 100 * self.min_step_share),
            ),
            ruled_out=(
                "synchronous calls: only those made with async_op=True are counted",
                "the last of several that overlap: most calls of the kind hide nothing",
            ),
            advice=(
                "move wait() after the compute that does not need the result; that it was waited "
                "for is inferred from the idle time until the operation's end"
            ),
        )

    @staticmethod
    def bad() -> Measures:
        """An asynchronous all_reduce, and the compute enqueued after it starts at its end."""
        return _run(compute_at=505)

    @staticmethod
    def good() -> Measures:
        """The compute runs meanwhile."""
        return _run(compute_at=105)


def _run(compute_at: float) -> Measures:
    run = Tiny()
    for step in range(12):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.collective(0, "all_reduce", start + 100, 400, size=1 << 24, asynchronous=1)
        launch = BASE_NS + round(1e3 * (start + 110))
        run.kernel(0, start + compute_at, 380, launch_ns=launch)
    return run.trace()


def _calls(run: Measures) -> pd.DataFrame:
    """Asynchronous calls: whether they block, for how long, and the compute after them."""
    calls = run.collectives[run.collectives["asynchronous"] == 1]
    calls = calls.assign(label=_labels(calls, run))
    parts = [calls.iloc[:0].assign(blocked=False, blocked_ns=0, behind_ns=0)]
    for place, done in device_work(run).items():
        mine = calls[(calls["rank"] == place.rank) & (calls["device"] == place.device)]
        if len(mine) and done.compute is not None:
            parts.append(_blocked(mine, done.compute, _next_call(mine, run)))
    every = pd.concat([part for part in parts if len(part)] or parts[:1])
    return every.assign(regained_ns=every[["blocked_ns", "behind_ns"]].min(axis=1))


def _blocked(calls: pd.DataFrame, compute: Intervals, following: Int64) -> pd.DataFrame:
    """Whether nothing computes while they run, and something does right after."""
    start = calls["start_ns"].to_numpy()
    end = start + calls["duration_ns"].to_numpy()
    hidden = covered(start, end, compute)
    opens = np.append(compute[0], _FAR)
    resumed = opens[np.searchsorted(opens, end)]
    behind = covered(end, np.maximum(following, end), compute)
    at_once = resumed - end <= np.maximum(_AT_ONCE_NS, _AT_ONCE * (end - start))
    blocked = (hidden <= (1 - _MOSTLY) * (end - start)) & at_once
    return calls.assign(blocked=blocked, blocked_ns=end - start - hidden, behind_ns=behind)


def _next_call(calls: pd.DataFrame, run: Measures) -> Int64:
    """When the next operation of the same rank and device starts, of whatever kind."""
    rank, device = calls["rank"].iloc[0], calls["device"].iloc[0]
    every = rows_of_device(run, "collectives", int(rank), str(device))
    starts = np.sort(every["start_ns"].to_numpy())
    last = starts[-1:] + 3_600_000_000_000
    found = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right")
    return np.asarray(np.append(starts, last)[found], dtype=np.int64)


def _labels(calls: pd.DataFrame, run: Measures) -> npt.NDArray[np.object_]:
    """The innermost labelled range that each call was made in."""
    ranges = run.steps[run.steps["label"].notna()].sort_values("start_ns", kind="stable")
    moments = calls["launch_ns"].fillna(calls["start_ns"]).to_numpy(dtype=np.int64)
    labels = np.full(len(calls), None, dtype=object)
    for rank in calls["rank"].unique().tolist():
        mine = ranges[ranges["rank"] == rank]
        start = mine["start_ns"].to_numpy()
        end = start + mine["duration_ns"].to_numpy()
        name = mine["label"].astype(str).to_list()
        for row in np.flatnonzero((calls["rank"] == rank).to_numpy()).tolist():
            around = np.flatnonzero((start <= moments[row]) & (moments[row] < end))
            labels[row] = name[around[-1]] if around.size else None
    return labels
