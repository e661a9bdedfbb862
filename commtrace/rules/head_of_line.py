"""An operation that is ready waits behind another on its stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from commtrace.arrays import NULL, Int64, integers
from commtrace.causal.cores import idle_cores_ns
from commtrace.causal.run_graph import run_graph
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.causal.wait_edits import unqueued
from commtrace.diagnosis import Evidence, Finding, enough, too_few
from commtrace.intervals import covered, subtract, total, union
from commtrace.metrics.rank.activity import Device, device_work
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import ready_ns
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.intervals import Intervals
    from commtrace.measures import Measures

_AT_ONCE_NS = 50_000
_NEEDED = [
    *("rank", "op", "group", "size_bytes", "device", "stream", "asynchronous"),
    *("launch_ns", "start_ns", "duration_ns"),
]


class HeadOfLine(Rule, frozen=True):
    """Communication that could start is stuck behind unrelated communication.

    What it detects
        Operations that were launched, and whose inputs were computed, while another operation of
        other bytes, and of another group or kind, ran on the same stream (gloo: the same thread),
        and that started as soon as it was done. Also of its group and kind, if the host waited for
        the one at once (``async_op=False``) and went on with the other under way. At least
        ``min_operations`` of them; replayed with each of them before what it queued behind, which
        then takes longer by its time, the run is shorter by at least ``min_step_share`` of the
        steps' time; by no more than the time in which they queued and the device computed nothing,
        nor than the compute (gloo: whatever the host does) that follows before the host calls the
        next operation, since only that could run beside what was in front.

    Why it costs time
        A stream runs one thing after the other, whether or not the second needs the first:
        a small operation that compute waits for sits behind a large one that nobody awaits.

    What to do
        Give it a process group, and so a stream, of its own; or call it before the large one.

    Blind spots
        Inputs are taken to be ready when all compute that was launched before is done. An operation
        of the same bytes, or of the same group and kind with both awaited alike, is taken to be in
        its place on purpose: the second half of a decomposition needs the first. So is a barrier.
        Several that are stuck behind one another each count the same compute.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 3
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of blocked operation and kind of blocker."""
        calls = run.collective_columns[_NEEDED].reset_index(drop=True)
        calls = calls[calls["launch_ns"].notna()]
        if len(calls) < self.min_operations:
            raise too_few(len(calls), "operation", self.min_operations, "with a known launch")
        stuck = _stuck(calls, run)
        kinds = ["op", "group", "blocker", "blocker_group"]
        found = []
        for _, mine in stuck.groupby(kinds, observed=True, dropna=False):
            per_rank = mine.groupby("rank")
            estimate = max(_gain_ns(of_rank, run) for _, of_rank in per_rank)
            if not worth_reporting(estimate, run, self.min_step_share):
                continue
            gain = saving(run, _first(run, mine), estimate, self.min_step_share)
            gain = gain.at_most(estimate, run).at_most(idle_cores_ns(run), run)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((int(per_rank.size().max()), (mine, gain)))
        for mine, gain in enough(found, self.min_operations, "operation", "stuck behind one kind"):
            yield self._finding(mine, gain, run)

    def _finding(self, stuck: pd.DataFrame, gain: Saving, run: Measures) -> Finding:
        first = stuck.iloc[0]
        cost = gain.cost_ns
        queued = float((stuck["start_ns"] - stuck["ready_ns"]).median())
        share = share_pct(cost, run)
        wait = "waits" if len(stuck) == 1 else "wait"
        same = "" if first["group"] == first["blocker_group"] else " of another group"
        on_cpu = first["device"] == "cpu"
        queue, what = ("thread of gloo", "the host") if on_cpu else ("stream", "compute")
        return self.finding(
            (stuck["ready_ns"], stuck["start_ns"]),
            summary=(
                f"{counted(len(stuck), first['op'])} ready to start {wait} {ms(queued)} each "
                f"behind {first['blocker']}{same} on the same {queue}: {ms(cost)} that {what} "
                "could fill"
            ),
            ranks=tuple(sorted({int(rank) for rank in stuck["rank"]})),
            streams=tuple(sorted({int(stream) for stream in stuck["stream"]})),
            cost_ns=cost,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            place=f"before the {first['op']}",
            evidence=(
                Evidence(
                    "operations that were stuck", len(stuck), "operations", self.min_operations
                ),
                Evidence("median time ready but queued", queued, "ns"),
                Evidence(
                    f"compute that could run meanwhile, {of_time(run)}",
                    share,
                    "%",
                    100 * self.min_step_share,
                ),
                *gain.evidence,
            ),
            ruled_out=(
                "inputs: the compute launched before it was done",
                "intended order: of one kind and group only what is awaited at once is compared",
            ),
            advice=_advice(str(first["op"]), str(first["blocker"])),
        )

    @staticmethod
    def bad() -> Measures:
        """An all_gather that compute needs queues behind a reduce_scatter on one stream."""
        return _run(stream=20)

    @staticmethod
    def good() -> Measures:
        """The same on a stream of its own."""
        return _run(stream=21)


def _advice(op: str, blocker: str) -> str:
    if {op, blocker} == {"all_gather", "reduce_scatter"}:
        return (
            "let the two run on communicators of their own: FSDP2's modules have "
            "set_separate_reduce_scatter_group(); else give one a process group of its own"
        )
    return f"give {op} a process group of its own, or call it before {blocker}"


def _run(stream: int) -> Measures:
    run = Tiny()
    for step in range(12):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.kernel(0, start + 10, 90)
        at = {"launch_ns": BASE_NS + round(1e3 * (start + 50))}
        run.collective(0, "reduce_scatter", start + 110, 400, size=1 << 24, **at)
        begins = start + (512 if stream == 20 else 112)
        run.collective(0, "all_gather", begins, 100, size=1 << 20, stream=stream, **at)
        run.kernel(0, begins + 105, 200)
    return run.trace()


def _first(run: Measures, stuck: pd.DataFrame) -> Edit:
    """These operations before what they queued behind."""
    return lambda lag_ns: unqueued(run, np.isin(run_graph(run).calls.row, stuck.index), lag_ns)


def _stuck(calls: pd.DataFrame, run: Measures) -> pd.DataFrame:
    """Operations that started as soon as an unrelated one on their stream was done."""
    calls = calls.assign(end_ns=calls["start_ns"] + calls["duration_ns"])
    after, before = _following(calls)
    op, group = (calls[name].cat.codes.to_numpy() for name in ("op", "group"))
    has_op = (op >= 0) & (calls["op"] != "barrier").to_numpy()
    awaited = integers(calls["asynchronous"])
    urgent = (awaited[after] == 0) & (awaited[before] == 1)
    other_group = (group[after] >= 0) & (group[after] != group[before])
    unrelated = (op[after] != op[before]) | other_group | urgent
    unrelated &= has_op[after] & has_op[before]
    stuck = calls.iloc[after[unrelated]]
    blockers = calls.iloc[before[unrelated]].set_axis(stuck.index)
    stuck = stuck.assign(
        blocker=blockers["op"],
        blocker_group=blockers["group"],
        ready_ns=np.maximum(ready_ns(stuck, run), blockers["start_ns"]),
    )
    found: pd.DataFrame = stuck[stuck["ready_ns"] < blockers["end_ns"]]
    return found


def _following(calls: pd.DataFrame) -> tuple[Int64, Int64]:
    """The rows that started as soon as the one before on their stream, of other bytes, was done.

    And those of these.
    """
    rank, stream, start, end, size = (
        integers(calls[name]) for name in ("rank", "stream", "start_ns", "end_ns", "size_bytes")
    )
    device = calls["device"].cat.codes.to_numpy()
    order = np.lexsort((start, stream, device, rank))
    before, after = order[:-1], order[1:]
    same = device[after] >= 0
    for place in (rank, device, stream):
        same &= place[before] == place[after]
    idle_ns = start[after] - end[before]
    # A free thread of gloo takes what its group called next, however late it wakes.
    on_cpu = (calls["device"] == "cpu").to_numpy()[after]
    at_once = (idle_ns >= 0) & ((idle_ns <= _AT_ONCE_NS) | on_cpu)
    other_bytes = (size[after] != size[before]) & (size[after] != NULL) & (size[before] != NULL)
    follows = same & at_once & other_bytes
    return after[follows], before[follows]


def _gain_ns(stuck: pd.DataFrame, run: Measures) -> int:
    """What one rank saves if none of them is stuck."""
    rank, device = int(stuck["rank"].iloc[0]), str(stuck["device"].iloc[0])
    ready = stuck["ready_ns"].to_numpy(dtype=np.int64)
    start = stuck["start_ns"].to_numpy()
    end = stuck["end_ns"].to_numpy()
    compute = _compute(run, rank, device)
    if compute is None:
        return 0
    waits = start - ready - covered(ready, start, compute)
    until = np.maximum(_next_call_ns(end, rank, run), end)
    behind = until - end if device == "cpu" else covered(end, until, compute)
    # Threads may be stuck at the same time: that time is saved once.
    at_most = total(subtract(union(ready, start), compute))
    return min(int(np.minimum(waits, behind).sum()), at_most)


def _compute(run: Measures, rank: int, device: str) -> Intervals | None:
    done = device_work(run).get(Device(rank, device))
    return done.compute if done else None


def _next_call_ns(
    moments: npt.NDArray[np.int64], rank: int, run: Measures
) -> npt.NDArray[np.int64]:
    """When the rank's host calls the next operation after each moment; the end of time if never."""
    of_rank = rows_of_rank(run, "collectives", rank)["launch_ns"]
    launched = np.sort(of_rank.dropna().to_numpy(dtype=np.int64))
    launched = np.append(launched, np.iinfo(np.int64).max)
    return np.asarray(launched[np.searchsorted(launched, moments, side="right")], dtype=np.int64)
