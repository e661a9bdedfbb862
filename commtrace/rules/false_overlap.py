"""Asynchronous communication is waited for before the work that could hide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import Int64, integers
from commtrace.causal.cores import idle_cores_ns
from commtrace.causal.early_waits import early_waits
from commtrace.causal.graph import Lags
from commtrace.causal.run_graph import run_graph
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.causal.wait_edits import waiting_later
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_work
from commtrace.metrics.rank.rows_of import rows_at, rows_of_device
from commtrace.metrics.run.group_dimensions import dimension_of
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


class FalseOverlap(Rule, frozen=True):
    """A call is asynchronous, yet its result is waited for before other work runs.

    What it detects
        Calls with ``async_op=True``, at least ``min_operations`` of one kind under one label,
        of which at least four fifths hide nothing: the device (gloo: the calling thread) does
        next to nothing until they are done, then computes at once. Replayed with each wait moved
        behind the work that follows it (until the next call, at most to the end of the step, or of
        the backward pass if it is a gradient's), the run is shorter by at least ``min_step_share``
        of the steps' time; on CPUs by no more than the ranks' processes leave idle of the cores.

    Why it costs time
        The call is written to overlap and does not: communication and compute run in turn.

    What to do
        Move ``wait()`` after the work that does not need the result; of gradients behind
        ``backward()``.

    Blind spots
        Whether the compute after it needs the result: then it is no fault. It is known only of
        gradients, which the rest of the backward pass does not need. A wait has no
        event: it is inferred from the idle time until the operation's end. Which calls are
        asynchronous is known only from recorded shapes (``record_shapes=True``). On CPUs what
        DDP waits for, and functional collectives, whose results are waited for where they are
        used, are no wait that a program could move: they are exposed-communication's.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of call and label."""
        if run.collective_columns["asynchronous"].isna().all():
            raise CannotLook(
                "needs to know which calls are asynchronous: record with record_shapes=True"
            )
        found = []
        for _, mine in _calls(run).groupby(["op", "group", "label"], observed=True, dropna=False):
            blocked = mine[mine["blocked"]]
            estimate = float(blocked.groupby("rank")["regained_ns"].sum().median())
            mostly = len(blocked) >= _MOSTLY * len(mine)
            if not (mostly and worth_reporting(estimate, run, self.min_step_share)):
                continue
            gain = saving(run, _moved(run, blocked), estimate, self.min_step_share)
            gain = gain.at_most(idle_cores_ns(run), run)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((len(blocked), (blocked, len(mine), gain)))
        which = "of one kind that hide nothing"
        for blocked, many, gain in enough(found, self.min_operations, "call", which):
            yield self._finding(blocked, many, gain, run)

    def _finding(self, blocked: pd.DataFrame, calls: int, gain: Saving, run: Measures) -> Finding:
        first, cost = blocked.iloc[0], gain.cost_ns
        made = counted(calls, f"asynchronous {first['op']} call")
        are = "is" if len(blocked) == 1 else "are"
        where = "" if pd.isna(first["label"]) else f" in '{cut(str(first['label']), _NAME)}'"
        share = share_pct(cost, run)
        gradients = bool(blocked["gradients"].all())
        dimension = dimension_of(run, int(blocked.index[0]))
        return self.finding(
            blocked,
            summary=(
                f"{len(blocked)} of {made}{where} {are} waited for before any other work runs: "
                f"{ms(cost)} could be hidden"
            ),
            ranks=tuple(sorted({int(rank) for rank in blocked["rank"]})),
            cost_ns=cost,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            place=f"behind the {first['op']}" + (f" of {dimension}" if dimension else ""),
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
                *gain.evidence,
            ),
            ruled_out=(
                "synchronous calls: only those made with async_op=True are counted",
                "the last of several that overlap: most calls of the kind hide nothing",
                *(
                    ("a result that is needed: the rest of backward needs no gradient of these",)
                    if gradients
                    else ()
                ),
            ),
            advice=(
                "keep the handles of these gradients' calls, and wait for all behind backward(), "
                "before the optimizer"
                if gradients
                else "move wait() after the compute that does not need the result; that it was "
                "waited for is inferred from the idle time until the operation's end"
            ),
            confidence="low" if (blocked["device"] == "cpu").all() and not gradients else "medium",
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


def _moved(run: Measures, blocked: pd.DataFrame) -> Edit:
    """Each of these waits behind the compute that follows it."""

    def edit(lag_ns: Lags) -> Int64:
        row = run_graph(run).calls.row
        behind_ns = blocked["behind_ns"].reindex(row, fill_value=0).to_numpy(np.int64)
        return waiting_later(run, behind_ns, lag_ns)

    return edit


def _calls(run: Measures) -> pd.DataFrame:
    """Asynchronous calls: whether they block, for how long, and the compute after them.

    By row of ``collectives``. On CPUs those that a thread waited for, as the graph shows.
    """
    at = np.flatnonzero(integers(run.collective_columns["asynchronous"]) == 1)
    calls = rows_at(run, "collectives", at).frame().set_axis(at)
    calls = calls.assign(label=_labels(calls, run), gradients=False)
    parts = [calls.iloc[:0].assign(blocked=False, blocked_ns=0, behind_ns=0)]
    if calls.empty:
        return parts[0].assign(regained_ns=0)
    on_cpu = _on_cpu(calls, run)
    parts += [] if on_cpu is None else [on_cpu]
    for place, done in device_work(run).items():
        mine = calls[(calls["rank"] == place.rank) & (calls["device"] == place.device)]
        by_graph = on_cpu is not None and place.device == "cpu"
        if len(mine) and done.compute is not None and not by_graph:
            parts.append(_blocked(mine, done.compute, _next_call(mine, run)))
    every = pd.concat([part for part in parts if len(part)] or parts[:1])
    return every.assign(regained_ns=every[["blocked_ns", "behind_ns"]].min(axis=1))


def _on_cpu(calls: pd.DataFrame, run: Measures) -> pd.DataFrame | None:
    """Of calls on CPUs those that their thread waits for; None where the run has no graph."""
    try:
        its, row = early_waits(run), run_graph(run).calls.row
    except CannotLook:
        return None
    return calls.loc[row[its.call]].assign(
        blocked=its.early,
        blocked_ns=its.blocked_ns,
        behind_ns=its.behind_ns,
        gradients=its.gradients,
    )


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
