"""Asynchronous communication is waited for before the work that could hide it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, distinct, first_rows, grouped, numbered, sums
from commtrace.causal.edits.early_waits import early_waits
from commtrace.causal.edits.wait_edits import waiting_later
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.causal.work.cores import idle_cores_ns
from commtrace.comms import is_update
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.intervals import covered
from commtrace.metrics.rank.activity import device_activity
from commtrace.metrics.rank.rows_of import places_of_rank, rows_of_device, rows_of_rank
from commtrace.metrics.run.group_dimensions import dimension_of
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._at_once import needed_at_once
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Coded, Rows
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
        gradients, which the rest of the backward pass does not need. On GPUs what an optimizer
        steps with right behind it is left out, and what tensor, expert or pipeline parallelism
        needs at once. A wait has no event: it is inferred from the idle time until the operation's
        end. Which calls are asynchronous is known from recorded shapes (``record_shapes=True``),
        and from what newer versions of PyTorch tell of NCCL's. On CPUs what DDP waits for, and
        functional collectives, whose results are waited for where they are used, are no wait that
        a program could move: they are exposed-communication's.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of call and label."""
        if (run.rows("collectives").ints("asynchronous") == NULL).all():
            raise CannotLook(
                "needs to know which calls are asynchronous: record with record_shapes=True"
            )
        found = []
        every = _calls(run)
        op, group = (every.rows.coded(name) for name in ("op", "group"))
        for mine in map(every.take, grouped(op, group, every.label.ordered())):
            blocked = mine.take(mine.blocked)
            many, count = mine.row.size, blocked.row.size
            estimate = blocked.regained_ns
            if count < _MOSTLY * many or not worth_reporting(estimate, run, self.min_step_share):
                continue
            gain = saving(run, _moved(run, blocked), estimate, self.min_step_share)
            gain = gain.at_most(idle_cores_ns(run), run)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((count, (blocked, many, gain)))
        which = "of one kind that hide nothing"
        for blocked, many, gain in enough(found, self.min_operations, "call", which):
            yield self._finding(blocked, many, gain, run)

    def _finding(self, blocked: _Calls, calls: int, gain: Saving, run: Measures) -> Finding:
        its, cost, count = blocked.rows, gain.cost_ns, blocked.row.size
        op, label = its.coded("op").at(0), blocked.label.at(0)
        made = counted(calls, f"asynchronous {op} call")
        are = "is" if count == 1 else "are"
        where = f" in '{cut(label, _NAME)}'" if label is not None else ""
        share = share_pct(cost, run)
        gradients = bool(blocked.gradients.all())
        dimension = dimension_of(run, int(blocked.row[0]))
        return self.finding(
            its,
            summary=(
                f"{count} of {made}{where} {are} waited for before any other work runs: "
                f"{ms(cost)} could be hidden"
            ),
            ranks=tuple(distinct(its.ints("rank")).tolist()),
            saving=gain,
            place=f"behind the {op}" + (f" of {dimension}" if dimension else ""),
            operations=matched(run).waits.ints("operation")[blocked.row],
            evidence=(
                Evidence(
                    "asynchronous calls that hide nothing",
                    count,
                    "operations",
                    self.min_operations,
                ),
                Evidence("median time blocked", median(blocked.blocked_ns), "ns"),
                Evidence("compute right after them", median(blocked.behind_ns), "ns"),
                Evidence(f"could be hidden, {of_time(run)}", share, "%", 100 * self.min_step_share),
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
            confidence=(
                "low" if its.coded("device").being("cpu").all() and not gradients else "medium"
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


class _Calls(Struct, frozen=True, eq=False):
    """Asynchronous calls: whether they block, for how long, and the compute after them.

    ``row`` is where their ``rows`` are in ``collectives``, ``label`` the innermost labelled range
    that they were made in.
    """

    row: Int64
    rows: Rows
    label: Coded
    gradients: Bool
    blocked: Bool
    blocked_ns: Int64
    behind_ns: Int64

    def take(self, which: Int64 | Bool) -> _Calls:
        """Some of them."""
        return _Calls(
            self.row[which],
            self.rows.take(which),
            self.label.take(which),
            self.gradients[which],
            self.blocked[which],
            self.blocked_ns[which],
            self.behind_ns[which],
        )

    @property
    def regained_ns(self) -> float:
        """What the median rank would gain; 0 of none."""
        rank = numbered(self.rows.ints("rank"))
        each = np.minimum(self.blocked_ns, self.behind_ns)
        gained = sums(rank, each, first_rows(rank).size)
        return median(gained) if gained.size else 0.0


def _moved(run: Measures, blocked: _Calls) -> Edit:
    """Each of these waits behind the compute that follows it."""

    def edit(lag_ns: Lags) -> Int64:
        behind_ns = np.zeros(len(run.rows("collectives")), np.int64)
        behind_ns[blocked.row] = blocked.behind_ns
        return waiting_later(run, behind_ns[run_graph(run).calls.row], lag_ns)

    return edit


class _Waits(NamedTuple):
    """Of some calls, which are ``at`` these places among all, what ``_Calls`` has."""

    at: Int64
    gradients: Bool
    blocked: Bool
    blocked_ns: Int64
    behind_ns: Int64


def _calls(run: Measures) -> _Calls:
    """On CPUs those that a thread waited for, as the graph shows."""
    row = np.flatnonzero(run.rows("collectives").ints("asynchronous") == 1)
    on_gpu = ~run.rows("collectives", row).coded("device").being("cpu")
    row = row[~(on_gpu & (_before_update(row, run) | needed_at_once(run)[row]))]
    calls = run.rows("collectives", row)
    rank, device = calls.ints("rank"), calls.coded("device")
    on_cpu = _on_cpu(row, run) if row.size else None
    parts = [] if on_cpu is None else [on_cpu]
    for place, done in device_activity(run).items():
        mine = np.flatnonzero((rank == place.rank) & device.being(place.device))
        by_graph = on_cpu is not None and place.device == "cpu"
        if mine.size and done.compute is not None and not by_graph:
            parts.append(_on_device(mine, calls.take(mine), done.compute, run))
    none = np.empty(0, np.int64), *(np.empty(0, np.bool_),) * 2, *(np.empty(0, np.int64),) * 2
    its = _Waits(*map(np.concatenate, zip(none, *parts, strict=True)))
    return _Calls(row[its.at], calls.take(its.at), _labels(calls, run).take(its.at), *its[1:])


def _before_update(row: Int64, run: Measures) -> Bool:
    """Which are the last that their host called before an optimizer's step, which needs them.

    As the one bucket of a model's gradients, or the last of several.
    """
    every = np.arange(len(run.rows("collectives")))
    found = np.zeros(every.size, np.bool_)
    for rank in distinct(run.rows("collectives").ints("rank")[row]).tolist():
        ranges, places = rows_of_rank(run, "steps", rank), places_of_rank(run, "collectives", rank)
        update = ranges.coded("label").where(is_update)
        launch = run.rows("collectives", places).ints("launch_ns")
        order = np.argsort(launch, kind="stable")
        last = np.searchsorted(launch[order], ranges.ints("start_ns")[update]) - 1
        found[every[places][order[last[last >= 0]]]] = True
    return found[row]


def _on_cpu(row: Int64, run: Measures) -> _Waits | None:
    """Of calls on CPUs those that their thread waits for; None where the run has no graph."""
    try:
        its, of_call = early_waits(run), run_graph(run).calls.row
    except CannotLook:
        return None
    at = np.searchsorted(row, of_call[its.call])
    return _Waits(at, its.gradients, its.early, its.blocked_ns, its.behind_ns)


def _on_device(at: Int64, calls: Rows, compute: Intervals, run: Measures) -> _Waits:
    """Whether nothing computes while a device's calls run, and something does right after."""
    start, end = calls.when()
    hidden = covered(start, end, compute)
    opens = np.append(compute[0], _FAR)
    resumed = opens[np.searchsorted(opens, end)]
    behind = covered(end, np.maximum(_next_call(calls, run), end), compute)
    at_once = resumed - end <= np.maximum(_AT_ONCE_NS, _AT_ONCE * (end - start))
    blocked = (hidden <= (1 - _MOSTLY) * (end - start)) & at_once
    return _Waits(at, np.zeros_like(blocked), blocked, end - start - hidden, behind)


def _next_call(calls: Rows, run: Measures) -> Int64:
    """When the next operation of the same rank and device starts, of whatever kind."""
    rank, device = int(calls.ints("rank")[0]), str(calls.coded("device").at(0))
    starts = np.sort(rows_of_device(run, "collectives", rank, device).ints("start_ns"))
    last = starts[-1:] + 3_600_000_000_000
    found: Int64 = np.append(starts, last)[
        np.searchsorted(starts, calls.ints("start_ns"), side="right")
    ]
    return found


def _labels(calls: Rows, run: Measures) -> Coded:
    """The innermost labelled range that each call was made in."""
    ranges = run.rows("steps")
    ranges = ranges.take(np.flatnonzero(ranges.coded("label").known))
    ranges = ranges.take(np.argsort(ranges.ints("start_ns"), kind="stable"))
    launch = calls.ints("launch_ns")
    moments = np.where(launch == NULL, calls.ints("start_ns"), launch)
    codes = np.full(moments.size, -1, np.int32)
    for rank in distinct(calls.ints("rank")).tolist():
        mine = ranges.take(ranges.ints("rank") == rank)
        start, end = mine.when()
        for row in np.flatnonzero(calls.ints("rank") == rank).tolist():
            around = np.flatnonzero((start <= moments[row]) & (moments[row] < end))
            if around.size:
                codes[row] = mine.coded("label").codes[around[-1]]
    return Coded(codes, ranges.coded("label").names)
