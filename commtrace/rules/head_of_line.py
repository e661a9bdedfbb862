"""An operation that is ready waits behind another on its stream."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, grouped, in_order
from commtrace.causal.edits.wait_edits import unqueued
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.causal.work.cores import idle_cores_ns
from commtrace.diagnosis import Evidence, Finding, enough, too_few
from commtrace.intervals import covered, subtract, total, union
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.metrics.rank.timelines import ready_ns
from commtrace.metrics.run.group_dimensions import dimension_of, dimensions_of
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._at_once import beside_compute
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Rows
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.intervals import Intervals
    from commtrace.measures import Measures

_AT_ONCE_NS = 50_000


class HeadOfLine(Rule, frozen=True):
    """Communication that could start is stuck behind unrelated communication.

    What it detects
        Operations that were launched, and whose inputs were computed, while another operation of
        other bytes, and of another group or kind, ran on the same stream (gloo: the same thread),
        and that started as soon as it was done. Also of its group and kind, if the host waited for
        the one at once (``async_op=False``) and went on with the other under way. At least
        ``min_operations`` of them; replayed with these in a queue of their own, and what was in
        front longer by their time, the run is shorter by at least ``min_step_share`` of the steps'
        time; by no more than the time in which they queued and the device computed nothing. For
        gloo, and where there is no replay, by no more than what the host does, or the device
        computes, before the next call. Groups of one dimension are taken together.

    Why it costs time
        A stream runs one thing after the other, whether or not the second needs the first:
        a small operation that compute waits for sits behind a large one that nobody awaits.

    What to do
        Give it a process group, and so a stream, of its own; or call it before the large one.

    Blind spots
        Inputs are taken to be ready when all compute that was launched before is done. An operation
        of the same bytes, or of the same group and kind with both awaited alike, is taken to be in
        its place on purpose: the second half of a decomposition needs the first. So is a barrier,
        and what runs on a stream that computes, too: its caller's, which no other group changes.
        Several that are stuck behind one another each count the same compute.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 3
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of blocked operation and kind of blocker."""
        launched = np.flatnonzero(run.rows("collectives").ints("launch_ns") != NULL)
        if launched.size < self.min_operations:
            raise too_few(launched.size, "operation", self.min_operations, "with a known launch")
        found = []
        for mine in _by_kind(_stuck(launched, run), run):
            per_rank = _by_rank(mine, run)
            at_most, estimate = map(
                max, zip(*(_gain_ns(its, run) for its in per_rank), strict=True)
            )
            if not worth_reporting(at_most, run, self.min_step_share):
                continue
            gain = saving(run, _first(run, mine), estimate, self.min_step_share)
            gain = gain.at_most(at_most, run).at_most(idle_cores_ns(run), run)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((max(of_rank.row.size for of_rank in per_rank), (mine, gain)))
        for mine, gain in enough(found, self.min_operations, "operation", "stuck behind one kind"):
            yield self._finding(mine, gain, run)

    def _finding(self, stuck: _Stuck, gain: Saving, run: Measures) -> Finding:
        calls, blockers = stuck.calls(run), run.rows("collectives", stuck.blocker)
        count, start_ns, op = len(calls), calls.ints("start_ns"), calls.coded("op").at(0)
        blocker, cost = blockers.coded("op").at(0), gain.cost_ns
        queued = median(start_ns - stuck.ready_ns)
        share = share_pct(cost, run)
        wait = "waits" if count == 1 else "wait"
        group, other = (its.coded("group").at(0) for its in (calls, blockers))
        parts = [dimension_of(run, int(rows[0])) for rows in (stuck.row, stuck.blocker)]
        apart = parts[0] != parts[1] and None not in parts
        of_its, of_other = (f" of {part}" if apart else "" for part in parts)
        if not apart and (group is None or group != other):
            of_other = " of another group"
        on_cpu = calls.coded("device").at(0) == "cpu"
        queue, what = ("thread of gloo", "the host") if on_cpu else ("stream", "compute")
        return self.finding(
            (stuck.ready_ns, start_ns),
            summary=(
                f"{counted(count, str(op))}{of_its} ready to start {wait} {ms(queued)} each "
                f"behind {blocker}{of_other} on the same {queue}: {ms(cost)} that {what} "
                "could fill"
            ),
            ranks=tuple(distinct(calls.ints("rank")).tolist()),
            streams=tuple(distinct(calls.ints("stream")).tolist()),
            saving=gain,
            place=f"before the {op}",
            evidence=(
                Evidence("operations that were stuck", count, "operations", self.min_operations),
                Evidence("median time ready but queued", queued, "ns"),
                Evidence(
                    f"compute that could run meanwhile, {of_time(run)}",
                    share,
                    "%",
                    100 * self.min_step_share,
                ),
            ),
            ruled_out=(
                "inputs: the compute launched before it was done",
                "intended order: of one kind and group only what is awaited at once is compared",
            ),
            advice=_advice(f"{op}{of_its}", f"{blocker}{of_other}", group == other),
        )

    @staticmethod
    def bad() -> Measures:
        """An all_gather that compute needs queues behind a reduce_scatter on one stream."""
        return _run(stream=20)

    @staticmethod
    def good() -> Measures:
        """The same on a stream of its own."""
        return _run(stream=21)


def _advice(op: str, blocker: str, one_group: bool) -> str:
    if {op, blocker} == {"all_gather", "reduce_scatter"}:
        return (
            "let the two run on communicators of their own: FSDP2's modules have "
            "set_separate_reduce_scatter_group(); else give one a process group of its own"
        )
    own = "a process group of its own" if one_group else "a stream of its own"
    return f"give {op} {own}, or call it before {blocker}"


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


class _Stuck(Struct, frozen=True, eq=False):
    """Operations behind unrelated ones on their streams: the rows of both, and when each was ready.

    On its rank's own clock.
    """

    row: Int64
    blocker: Int64
    ready_ns: Int64

    def take(self, at: Int64 | Bool) -> _Stuck:
        """Some of them."""
        return _Stuck(self.row[at], self.blocker[at], self.ready_ns[at])

    def calls(self, run: Measures) -> Rows:
        """Their rows of ``collectives``."""
        return run.rows("collectives", self.row)


def _by_kind(stuck: _Stuck, run: Measures) -> Iterator[_Stuck]:
    """Those of each kind and group, or dimension, behind each such."""
    op = run.rows("collectives").coded("op")
    kinds = ((op.take(rows), _kin(rows, run)) for rows in (stuck.row, stuck.blocker))
    yield from map(stuck.take, grouped(*chain(*kinds)))


def _kin(rows: Int64, run: Measures) -> Int64:
    """A number for the dimension of each one's group, or the group: all of one are stuck alike."""
    dimension = dimensions_of(run, matched(run).matches.coded("communicator").take(rows))
    group = run.rows("collectives", rows).coded("group").codes.astype(np.int64)
    return np.where(dimension.known, -2 - dimension.codes.astype(np.int64), group)


def _by_rank(stuck: _Stuck, run: Measures) -> list[_Stuck]:
    return [*map(stuck.take, grouped(stuck.calls(run).ints("rank")))]


def _first(run: Measures, stuck: _Stuck) -> Edit:
    """These operations before what they queued behind."""
    row, every = run_graph(run).calls.row, np.arange(len(run.rows("collectives")))
    queued_ns = np.zeros(every.size, np.int64)
    queued_ns[stuck.row] = stuck.calls(run).ints("start_ns") - stuck.ready_ns
    calls = run.rows("collectives")
    kind = codes(calls.coded("op"), _kin(every, run), calls.ints("asynchronous"))
    apart, in_front = (kind[row] == kind[one[0]] for one in (stuck.row, stuck.blocker))
    return lambda lag_ns: unqueued(run, queued_ns[row], apart, in_front, lag_ns)


def _stuck(launched: Int64, run: Measures) -> _Stuck:
    """Operations that started as soon as an unrelated one on their stream was done."""
    calls = run.rows("collectives", launched)
    after, before = _following(calls)
    op, group, awaited = calls.coded("op"), calls.coded("group").codes, calls.ints("asynchronous")
    has_op = op.where(lambda name: name != "barrier")
    urgent = (awaited[after] == 0) & (awaited[before] == 1)
    other_group = (group[after] >= 0) & (group[after] != group[before])
    unrelated = (op.codes[after] != op.codes[before]) | other_group | urgent
    unrelated &= has_op[after] & has_op[before]
    after, before = after[unrelated], before[unrelated]
    start_ns, duration_ns = (calls.ints(name)[before] for name in ("start_ns", "duration_ns"))
    own = (calls.ints("rank")[after], calls.coded("device").take(after))
    ready = np.maximum(ready_ns(run, *own, calls.ints("launch_ns")[after]), start_ns)
    stuck = (ready < start_ns + duration_ns) & ~beside_compute(run, launched[after])
    return _Stuck(launched[after], launched[before], ready).take(stuck)


def _following(calls: Rows) -> tuple[Int64, Int64]:
    """The rows that started as soon as the one before on their stream, of other bytes, was done.

    And those of these.
    """
    rank, stream, start, size = (
        calls.ints(name) for name in ("rank", "stream", "start_ns", "size_bytes")
    )
    end = start + calls.ints("duration_ns")
    device = calls.coded("device")
    order = in_order(rank, device.codes, stream, start)
    before, after = order[:-1], order[1:]
    same = device.known[after]
    for place in (rank, device.codes, stream):
        same &= place[before] == place[after]
    idle_ns = start[after] - end[before]
    # A free thread of gloo takes what its group called next, however late it wakes.
    on_cpu = device.being("cpu")[after]
    at_once = (idle_ns >= 0) & ((idle_ns <= _AT_ONCE_NS) | on_cpu)
    other_bytes = (size[after] != size[before]) & (size[after] != NULL) & (size[before] != NULL)
    follows = same & at_once & other_bytes
    return after[follows], before[follows]


def _gain_ns(stuck: _Stuck, run: Measures) -> tuple[int, int]:
    """What one rank saves at most if none of them is stuck, and what of it compute behind fills."""
    calls = stuck.calls(run)
    rank, device = int(calls.ints("rank")[0]), str(calls.coded("device").at(0))
    ready, start = stuck.ready_ns, calls.ints("start_ns")
    end = start + calls.ints("duration_ns")
    compute = _compute(run, rank, device)
    if compute is None:
        return 0, 0
    waits = start - ready - covered(ready, start, compute)
    until = np.maximum(_next_call_ns(end, rank, run), end)
    behind = until - end if device == "cpu" else covered(end, until, compute)
    filled = np.minimum(waits, behind)
    # Threads may be stuck at the same time: that time is saved once.
    alone = total(subtract(union(ready, start), compute))
    # On CPUs nothing tells what waits for the result of those in front.
    at_most = filled if device == "cpu" else waits
    return min(int(at_most.sum()), alone), min(int(filled.sum()), alone)


def _compute(run: Measures, rank: int, device: str) -> Intervals | None:
    done = device_activity(run).get(Device(rank, device))
    return done.compute if done else None


def _next_call_ns(moments: Int64, rank: int, run: Measures) -> Int64:
    """When the rank's host calls the next operation after each moment; the end of time if never."""
    launched = np.sort(rows_of_rank(run, "collectives", rank).ints("launch_ns"))
    launched = np.append(launched, np.iinfo(np.int64).max)
    found: Int64 = launched[np.searchsorted(launched, moments, side="right")]
    return found
