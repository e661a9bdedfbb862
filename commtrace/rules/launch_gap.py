"""A GPU is idle because its host launches too slowly, or for a while not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from commtrace.arrays import Bool, Int64
from commtrace.causal.edits.rank_edits import launching_ahead
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.causal.work.segments import LABELLED
from commtrace.comms import DDP_FORWARD
from commtrace.diagnosis import Evidence, Finding, too_few
from commtrace.intervals import subtract, union
from commtrace.metrics.rank.timelines import Timeline, behind, elsewhere, timelines
from commtrace.metrics.run.unused_search import searches_unused
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._advice import ADVICE
from commtrace.rules._at_once import mostly_needed_at_once
from commtrace.rules._idle import (
    Idle,
    carried,
    explained_by,
    launched_in_time,
    starting,
    starved_ns,
)
from commtrace.rules._less import UNUSED, sharded
from commtrace.rules._rule import Rule, too
from commtrace.rules._stalls import (
    NAME,
    ON_CPU,
    if_unrecorded,
    known_work,
    label_in,
    later_steps,
    launching_faster,
    meanwhile,
    waited_first,
)
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.units import counted, cut, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_MUCH = 0.25  # of the gaps' time
_SEVERAL = 10
_SOME = 0.2  # of the share that is worth reporting: of each device, where several lack it
_AS_MUCH = 0.25  # of what the worst device lacks: others do "too"
_STALL_NS = 100_000
_LARGER_UNITS = "more layers in each unit that is sharded"


class LaunchGap(Rule, frozen=True):
    """A GPU is idle because its host launches too slowly, or for a while not at all.

    What it detects
        Time in which a device was idle, and the event behind it was launched only when the
        device had already run dry, of at least ``min_step_share`` of the steps' time, on the
        devices together (each of a fifth of that at least: others wait for it), in one of two
        forms. Gaps: at least ``min_gaps`` of them, each up to ``max_gap_us`` µs long. Stalls: any
        that are longer, and where gaps are fewer those of 100 µs or more, while the rank's other
        devices neither compute nor copy, either; if that is little, such ones next to copies, too.
        The potential saving of gaps is that of a run whose hosts, all of them, launch in no time,
        but for stalls; to stalls belong large copies to the host before and back behind them. How
        a run without steps starts to communicate, until one of twenty communication kernels has
        run, or a tenth of the run has passed, is no stall.

    Why it costs time
        Launching a kernel takes the host some microseconds, an operator tens. Kernels shorter
        than that leave the GPU waiting for the next. A host that stalls loads data, prints,
        compiles, allocates, or waits in a synchronising call: the advice names the operators that
        its file holds there.

    What to do
        Gaps: fuse (``torch.compile``), capture CUDA graphs, larger batches, foreach
        optimizers; where they border on many small collectives, bucket these. Stalls: look at
        what the host does meanwhile, move it to another thread, or do it less often.

    Blind spots
        The profiler slows the host itself: without it the gaps are smaller. What the host does in
        a stall is known as far as labels, operators, stacks or a recording's looks tell. Kernels
        of a captured graph share one launch. Short gaps next to small copies from or to the host
        are copy-loop's.
    """

    min_gaps: int = 100
    max_gap_us: float = 1000.0
    min_step_share: float = 0.05
    explained_by_share: ClassVar[float] = 0.4  # of a late host's gaps some are every host's

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding of each form, with the worst of the devices that have it."""
        gaps, stalls = list[Idle](), list[Idle]()
        for line in timelines(run):
            gaps += self._some(Idle.before(line, self._gaps(line)), run, _SOME)
            stalled = self._stalls(line, run)
            stalls += (
                self._some(stalled, run)
                or self._some(self._stalls(line, run, beside_copies=True), run)
                or self._some(stalled, run, _SOME)
            )
        gaps, stalls = (self._worth(found, run) for found in (gaps, stalls))
        many = [one for one in gaps if len(one.idle_ns) >= self.min_gaps]
        forms = (many, self._of_gaps, self._ahead(run)), (stalls, self._of_stalls, None)
        for found, report, mended in forms:
            if not found:
                continue
            worst = max(found, key=lambda one: one.total_ns)
            edit = mended or launched_in_time(run, found)
            gain = saving(run, edit, worst.total_ns, self.min_step_share)
            gain = gain.at_most(starved_ns(run, found), run)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                its = report(worst, gain, run)
                ranks = tuple(sorted({one.line.rank for one in found}))
                least_ns = _AS_MUCH * worst.total_ns
                alike = sorted({one.line.rank for one in found if one.total_ns >= least_ns})
                yield replace(
                    its,
                    explained_by=None if mended else explained_by(worst),
                    summary=its.summary + too(alike, worst.line.rank, run),
                    ranks=ranks,
                )
        if gaps and not many and not stalls:
            raise too_few(max(len(one.idle_ns) for one in gaps), "gap", self.min_gaps)

    def _some(self, found: Idle, run: Measures, part: float = 1.0) -> list[Idle]:
        share = part * self.min_step_share
        return [found] if worth_reporting(found.total_ns, run, share) else []

    def _worth(self, found: list[Idle], run: Measures) -> list[Idle]:
        """All or none: where devices wait for one another, as stages, what each lacks adds up."""
        least = self.min_step_share
        return found if found and worth_reporting(starved_ns(run, found), run, least) else []

    def _gaps(self, line: Timeline) -> Bool:
        """Which events have a short gap before them because they were launched late."""
        by_copy = behind(line.with_host) | line.starved_beside(line.small_copies())
        return line.starved() & ~by_copy & (line.idle_ns <= 1e3 * self.max_gap_us)

    def _stalls(self, line: Timeline, run: Measures, *, beside_copies: bool = False) -> Idle:
        """The same of long ones, where no device of the rank had anything to run.

        So long no copy to the host keeps it from launching. Where gaps are few shorter ones count,
        and those beside copies if they are asked for: beyond 100 µs the host does other things.
        """
        long, gaps = line.idle_ns > 1e3 * self.max_gap_us, self._gaps(line)
        few = gaps & (gaps.sum() < self.min_gaps) | (~gaps & beside_copies)
        few &= line.starved() & (line.idle_ns > _STALL_NS)
        idle = Idle.before(line, line.starved() & (long | few))
        begin, end = subtract((idle.begin_ns, idle.end_ns), elsewhere(line, run))
        long = end - begin > (_STALL_NS if few.any() else 1e3 * self.max_gap_us)
        began, started = starting(line, run)
        long &= (end <= began) | (begin >= started)
        return Idle(line, begin[long], end[long])

    def _ahead(self, run: Measures) -> Edit:
        """Hosts launch as one does who launches all at once, a graph; what stalls them stays.

        All hosts: where they launch slowly together, the others' devices do not show it, which
        wait for the slowest in a collective.
        """

        def edit(lag_ns: Lags) -> Int64:
            lag: Int64 = lag_ns.astype(np.int64)
            for line in timelines(run):
                stalls = Idle.before(line, line.starved() & ~self._gaps(line))
                when, most_ns = union(stalls.begin_ns, stalls.end_ns), 1e3 * self.max_gap_us
                launching_ahead(run, line.rank, round(most_ns), when, lag)
            return lag

        return edit

    def _of_gaps(self, found: Idle, gain: Saving, run: Measures) -> Finding:
        line, gaps = found.line, found.idle_ns
        bordering, bucket = self._bordering(line, self._gaps(line), run)
        when = union(found.begin_ns, found.end_ns)
        waits = waited_first(run, line.rank, when)
        advice = (bucket, waits, launching_faster(run, line.rank, when), if_unrecorded(run))
        return self._finding(
            found,
            gain,
            run,
            summary=(
                f"rank {line.rank}'s {line.device} waits for a launch "
                f"{counted(len(gaps), 'time')}, {ms(float(gaps.mean()))} on average: "
                f"{ms(found.total_ns)} in all"
            ),
            evidence=(
                Evidence("gaps before a late launch", len(gaps), "gaps", self.min_gaps),
                Evidence("median gap", median(gaps), "ns"),
                Evidence("median kernel or copy", median(line.end_ns - line.start_ns), "ns"),
                Evidence("of it next to a communication kernel", bordering, "ns"),
            ),
            ruled_out=(
                "waiting for another stream: only what was not launched yet is counted",
                "a host that a copy blocks: gaps next to a copy from or to it are not counted",
                "CUDA graphs: what one launch starts together is not late",
            ),
            advice="; ".join(filter(None, advice)),
            confidence="medium",
        )

    def _bordering(self, line: Timeline, found: Bool, run: Measures) -> tuple[int, str]:
        """The gaps on either side of communication, and what to do if they are many."""
        calls = line.kind == "communication"
        beside = found & (calls | np.concatenate(([False], calls[:-1])))
        time, whole = int(line.idle_ns[beside].sum()), int(line.idle_ns[found].sum())
        few = beside.sum() < self.min_gaps or time < _MUCH * whole
        if few or mostly_needed_at_once(run) is not None:
            return time, ""
        gathers = run.rows("collectives").coded("op").being("all_gather").any()
        into = _LARGER_UNITS if gathers and sharded(run) else "buckets, one flat tensor"
        typical = ms(median((line.end_ns - line.start_ns)[calls]))
        return time, (
            f"send the {calls.sum():,} communication kernels, half of which take {typical} at "
            f"most, as fewer and larger ones ({into}): {ms(time)} of the "
            "gaps border on them"
        )

    def _of_stalls(self, found: Idle, gain: Saving, run: Measures) -> Finding:
        line, stalls = found.line, found.idle_ns
        often = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        longest = int(stalls.argmax())
        over_ns = 1e3 * self.max_gap_us if stalls.min() > 1e3 * self.max_gap_us else _STALL_NS
        when = union(found.begin_ns, found.end_ns)
        label = label_in(run, line.rank, when)
        causes = (cause for cause, its in LABELLED.items() if label and its.match(label))
        does = next((ADVICE[cause] for cause in causes), None) or carried(found)
        if label == DDP_FORWARD and searches_unused(run):
            does = UNUSED
        if not does and (waits := waited_first(run, line.rank, when)):
            does = "; ".join(filter(None, (known_work(run, line.rank, when), waits)))
        does = does or meanwhile(run, line.rank, when)
        since, later = ms(int(found.begin_ns[longest] - line.first_ns)), later_steps(run)
        its = self._finding(
            found,
            gain,
            run,
            summary=(
                f"rank {line.rank}'s host stalls {often} for over {ms(over_ns)}, and "
                f"{line.device} has nothing to run: {ms(int(stalls.sum()))} in all"
                + _mostly_in(label, label_in(run, line.rank, when, _MUCH))
            ),
            evidence=(
                Evidence("stalls", len(stalls), "stalls"),
                Evidence("longest stall", int(stalls[longest]), "ns"),
            ),
            ruled_out=("waiting for other work: only what was not launched yet is counted",),
            advice=(
                f"{does}; look at the longest, {ms(stalls[longest])} from {since} after "
                f"{line.device}'s first work" + (later and f"; {later}")
            ),
            confidence="medium" if len(stalls) >= _SEVERAL else "low",
        )
        return replace(its, spares_memory=ON_CPU in does)

    def _finding(
        self,
        found: Idle,
        gain: Saving,
        run: Measures,
        *,
        summary: str,
        evidence: tuple[Evidence, ...],
        ruled_out: tuple[str, ...],
        advice: str,
        confidence: Literal["medium", "low"],
    ) -> Finding:
        line = found.line
        share = share_pct(found.total_ns, run)
        return self.finding(
            (found.begin_ns, found.end_ns),
            summary=summary,
            ranks=(line.rank,),
            streams=tuple(sorted({int(stream) for stream in line.stream[found.behind]})),
            saving=gain,
            evidence=(
                *evidence,
                Evidence(f"share {of_time(run)}", share, "%", 100 * self.min_step_share),
            ),
            ruled_out=ruled_out,
            advice=advice,
            confidence=confidence,
        )

    @staticmethod
    def bad() -> Measures:
        """200 kernels of 10 µs, one launched every 30 µs."""
        return _run(every_us=30)

    @staticmethod
    def good() -> Measures:
        """The same, one launched every 8 µs."""
        return _run(every_us=8)


def _run(every_us: float) -> Measures:
    run = Tiny()
    run.step(0, 0, 0, 205 * max(every_us, 10))
    start = 0.0
    for i in range(200):
        launch = i * every_us
        start = max(start + 10, launch + 5)
        run.kernel(0, start, 10, launch_ns=BASE_NS + round(launch * 1e3))
    return run.trace()


def _mostly_in(label: str | None, partly: str | None) -> str:
    """The label of most of the stalls' time, or of some."""
    if label or not partly:
        return f", mostly in '{cut(label, NAME)}'" if label else ""
    return f", partly in '{cut(partly, NAME)}'"
