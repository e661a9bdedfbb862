"""The host waits for a collective, or its device, and the device then waits for the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import NULL, Int64, distinct
from commtrace.causal.edits.rank_edits import not_blocking
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.rows_of import ranks_of, rows_of_rank
from commtrace.metrics.rank.timelines import Timeline, timelines
from commtrace.metrics.run.whole import has_steps, of_time, share_pct, step_count, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._device_calls import DEVICE, MEMORY, DeviceCalls, not_called
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SILENCE = 10  # median launch intervals: so long does a host not pause by chance
_LAUNCH = 2  # of the same: so long a launch takes at most
_RECOVERED_NS = 20_000
_PER_STEP = 2  # once is how a step is timed


class HostSync(Rule, frozen=True):
    """The host blocks until a collective, or its GPU, is done, with nothing launched for after it.

    What it detects
        Collectives after whose launch the host launches nothing, for ten times its usual
        interval between launches, until the collective, or a copy of its result to the host,
        is done, and resumes within ``resume_us`` µs of that (after such a copy, within two
        of its usual intervals). At least ``min_operations`` of them; the device's idle time
        until launches are ahead of it again, or the host reads more, is at least ``min_step_share``
        of the steps' time. And synchronisations of the whole device, or calls that free its memory
        and allocate it anew (``empty_cache()``, or memory that is full), as many and two a step, if
        the run replayed without them is so much shorter.

    Why it costs time
        A host that runs ahead of the device hides its own time. After ``item()``,
        ``synchronize()`` or a copy to pageable memory the device is empty, and every launch
        shows.

    What to do
        ``Work.wait()`` orders streams without blocking the host: no ``synchronize()`` is
        needed. Keep what is printed or logged on the device, and read it later, or seldom.

    Blind spots
        Which calls block on a collective is inferred from when the host resumes. A device may be
        synchronised for a reason, as for a stream that nothing else orders.
    """

    explains: ClassVar[tuple[str, ...]] = ("copy-loop", "launch-gap")

    min_operations: int = 10
    resume_us: float = 100.0
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding at most of memory, and one else, with the worst of the devices."""
        yield from self._of_calls(run, MEMORY)
        found = [*self._of_calls(run, DEVICE)]
        yield from found or self._of_collectives(run)

    def _of_calls(self, run: Measures, which: DeviceCalls) -> Iterator[Finding]:
        """Hosts that wait for a whole device again and again."""
        calls = {rank: which.of(run, rank) for rank in ranks_of(run, "blocking_calls")}
        least = max(self.min_operations, _PER_STEP * step_count(run))
        often = {rank: its for rank, its in calls.items() if which.count(its) >= least}
        blocked_ns = max((int(its.ints("duration_ns").sum()) for its in often.values()), default=0)
        if not worth_reporting(blocked_ns, run, self.min_step_share):
            return
        gain = saving(run, not_called(run, often), blocked_ns, self.min_step_share)
        if gain.why or not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        rank, most = max(often.items(), key=lambda one: which.count(one[1]))
        name, count = most.coded("name").at(which.rows(most)[0]), which.count(most)
        yield self.finding(
            most.when(),
            summary=(
                f"rank {rank}'s host calls {name} {count:,} times, {which.what}: "
                f"{ms(gain.cost_ns)} to save" + too(often, rank, run)
            ),
            ranks=tuple(often),
            saving=gain,
            evidence=(
                Evidence(which.counted, count, "calls", least),
                Evidence(
                    f"saved without them, {of_time(run)}",
                    share_pct(gain.cost_ns, run),
                    "%",
                    100 * self.min_step_share,
                ),
            ),
            ruled_out=(which.ruled_out,),
            advice=which.advice,
            confidence="high" if has_steps(run) else "medium",
        )

    def _of_collectives(self, run: Measures) -> Iterator[Finding]:
        """Hosts that wait for collectives, one by one."""
        calls = run.rows("collectives")
        launched = ~calls.coded("device").being("cpu") & (calls.ints("launch_ns") != NULL)
        if launched.sum() < self.min_operations:
            raise CannotLook(f"needs {self.min_operations} collectives launched on a GPU")
        found = []
        for line in timelines(run):
            mine = _launched(run, "collectives", line.rank, "device", line.device)
            to_host = _launched(run, "copies", line.rank, "kind", "DtoH")
            blocked, by_copy, idle = _blocked(line, mine, to_host, round(1e3 * self.resume_us))
            enough = len(blocked) >= self.min_operations
            if enough and worth_reporting(idle, run, self.min_step_share):
                found.append((idle, by_copy, blocked, line))
        if not found:
            return
        idle, by_copy, blocked, line = max(found, key=lambda one: one[0])
        waits = [(one[3].rank, one[2]) for one in found]
        edit = _unblocked(run, waits, soon_ns=round(1e3 * self.resume_us))
        gain = saving(run, edit, idle, self.min_step_share)
        if worth_reporting(gain.cost_ns, run, self.min_step_share):
            ranks = tuple(sorted({rank for rank, _ in waits}))
            yield self._finding(gain, by_copy, blocked, line, ranks, run)

    def _finding(
        self,
        gain: Saving,
        by_copy: int,
        blocked: Int64,
        line: Timeline,
        ranks: tuple[int, ...],
        run: Measures,
    ) -> Finding:
        share = share_pct(gain.cost_ns, run)
        return self.finding(
            (blocked, blocked),
            summary=(
                f"rank {line.rank}'s host blocks on {counted(len(blocked), 'collective')}, and "
                f"{line.device} is then idle: {ms(gain.cost_ns)} to save"
                + too(ranks, line.rank, run)
            ),
            ranks=ranks,
            streams=tuple(sorted({int(stream) for stream in line.stream})),
            saving=gain,
            evidence=(
                Evidence(
                    "collectives the host blocks on",
                    len(blocked),
                    "operations",
                    self.min_operations,
                ),
                Evidence("of these with a copy to the host", by_copy, "operations"),
                Evidence(f"idle after them, {of_time(run)}", share, "%", 100 * self.min_step_share),
            ),
            ruled_out=("a slow host: it resumes when the collective is done, each time",),
            advice=(
                "read results on the host later or less often (item, print, .cpu()); Work.wait() "
                "needs no synchronize() beside it"
            ),
            confidence="high" if by_copy == len(blocked) else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """After each all_reduce the host reads its result, then goes on launching."""
        return _run(reads=True)

    @staticmethod
    def good() -> Measures:
        """The host launches everything ahead, and reads nothing."""
        return _run(reads=False)


def _run(*, reads: bool) -> Measures:
    run = Tiny()
    launch, free = 0.0, 0.0
    for step in range(12):
        step_start = launch
        for _ in range(19):
            launch += 10
            start = max(free, launch + 5)
            run.kernel(0, start, 15, launch_ns=_at(launch))
            free = start + 15
        launch += 10
        run.collective(0, "all_reduce", free, 400, size=1 << 20, launch_ns=_at(launch))
        free += 400
        if reads:
            at = _at(launch + 10)
            run.copy(0, free + 2, 3, kind="DtoH", size=4, memory="pageable", launch_ns=at)
            free += 5
            launch = free + 60
        run.step(0, step, step_start, launch - step_start)
    return run.trace()


def _unblocked(run: Measures, waits: list[tuple[int, Int64]], soon_ns: int) -> Edit:
    """Hosts, each of a rank, do not wait for what was done at these times, or so soon before."""

    def edit(lag_ns: Lags) -> Int64:
        lag: Int64 = lag_ns.astype(np.int64)
        for rank, done_ns in waits:
            not_blocking(run, rank, done_ns, soon_ns, lag)
        return lag

    return edit


def _at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


class _Launched(Struct, frozen=True, eq=False):
    """When some rows were launched, which is their order, and when they ran."""

    launch_ns: Int64
    start_ns: Int64
    end_ns: Int64


def _launched(run: Measures, table: str, rank: int, column: str, value: str) -> _Launched:
    """A rank's rows that have a value in a column, where their launch is known."""
    its = rows_of_rank(run, table, rank)
    launch_ns, start_ns = its.ints("launch_ns"), its.ints("start_ns")
    rows = np.flatnonzero(its.coded(column).being(value) & (launch_ns != NULL))
    rows = rows[np.argsort(launch_ns[rows], kind="stable")]
    end_ns = start_ns[rows] + its.ints("duration_ns")[rows]
    return _Launched(launch_ns[rows], start_ns[rows], end_ns)


def _blocked(
    line: Timeline, calls: _Launched, to_host: _Launched, resume_ns: int
) -> tuple[Int64, int, int]:
    """When the host unblocked, how often a copy shows why, and the idle time behind it all."""
    launches = np.sort(line.launch_ns)
    intervals = np.diff(launches)
    usual = median(intervals[intervals > 0]) if (intervals > 0).any() else 0.0
    launch, done = calls.launch_ns, calls.end_ns
    read, read_launch = _read(launch, done, to_host, resume_ns)
    after = np.where(read, read_launch, launch)
    until = np.where(read, _copy_end(read_launch, to_host), done)
    nth = np.searchsorted(launches, after, side="right")
    resumed = np.append(launches, np.iinfo(np.int64).max)[nth]
    silent = resumed - after >= _SILENCE * usual
    # A host that needs longer for any launch needs it for this one, too.
    soon = np.where(read, max(resume_ns, round(_LAUNCH * usual)), resume_ns)
    blocked = silent & (resumed >= until) & (resumed - until <= soon)
    idle = _idle_after(line, distinct(until[blocked]))
    return until[blocked], int((blocked & read).sum()), idle


def _read(
    launch: Int64, done: Int64, to_host: _Launched, within_ns: int
) -> tuple[npt.NDArray[np.bool_], Int64]:
    """Whether a copy to the host that was launched meanwhile follows, and its launch."""
    asked, began = to_host.launch_ns, to_host.start_ns
    if not len(asked):
        return np.zeros(launch.shape, np.bool_), launch
    at = np.searchsorted(asked, launch, side="right")
    inside = np.minimum(at, len(asked) - 1)
    follows = (began[inside] >= done) & (began[inside] - done <= within_ns)
    return (at < len(asked)) & (asked[inside] < done) & follows, asked[inside]


def _copy_end(asked: Int64, to_host: _Launched) -> Int64:
    end = to_host.end_ns
    if not len(end):
        return asked
    found: Int64 = end[np.minimum(np.searchsorted(to_host.launch_ns, asked), len(end) - 1)]
    return found


def _idle_after(line: Timeline, times_ns: Int64) -> int:
    """Idle time from each of them on, until an event starts that had long been launched.

    Or until a second copy from or to the host: that one blocks it, no longer the collective.
    """
    first = np.searchsorted(line.start_ns, times_ns)
    last = len(line.start_ns)
    recovered = np.append(np.flatnonzero(line.ready_ns > _RECOVERED_NS), last)
    copies = np.concatenate((np.flatnonzero(line.with_host), [last, last]))
    stop = np.minimum(
        recovered[np.searchsorted(recovered, first)], copies[np.searchsorted(copies, first) + 1]
    )
    idle = np.concatenate(([0], np.cumsum(line.idle_ns)))
    return int((idle[stop] - idle[first]).sum())
