"""Communication runs while the device computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.arrays import Int64, distinct
from commtrace.causal.run.replayable import replayable
from commtrace.causal.savings import Saving, of_unrecorded
from commtrace.causal.work.cores import FULL, asleep_ns, cores_used, full_cores, idle_cores_ns
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.exposed_calls import asynchronous, most_exposed, unlaunched_ns
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import has_steps, of_time, share_pct, whole, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._across_hosts import swapped, transposed
from commtrace.rules._at_once import mostly_needed_at_once, on_callers_stream, whose
from commtrace.rules._backward import Hideable, hideable
from commtrace.rules._between_hosts import to_compare
from commtrace.rules._bound import doing_less
from commtrace.rules._exposed import Devices, exposed_in_all_ns, per_device
from commtrace.rules._hidden import beside_backward_ns, hidden_ns, most_worth_hiding
from commtrace.rules._less import asked, fewer_bytes, less, longest, many_small
from commtrace.rules._overlapped import overlapped
from commtrace.rules._rule import Rule
from commtrace.rules._unsure import may_wait, why_unsure
from commtrace.synthetic import Tiny
from commtrace.units import ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures


_NEARLY_ALL = 0.75  # of the compute


class ExposedCommunication(Rule, frozen=True):
    """Communication that compute could hide runs with no compute beside it.

    What it detects
        Per device and step, communication during which no compute runs, as far as there is compute
        in that step which runs without communication: the smaller of the two could hide behind the
        other. It fires where this is at least ``min_step_share`` of the steps' time on the median
        device, and less than ``hidden_pct`` of communication is hidden already: some end of it is
        always exposed. Where compute could hide less than ``min_hideable_pct`` of what is exposed,
        the run is nearly all communication, and overlap cannot help. Nor does it where operators
        and transfers fill the CPU's cores: exposed communication of at least ``large_step_share``
        of the steps is named there without a saving, as it is where backward computes too little
        beside what reduces its gradients, which forward and the optimizer cannot hide, or where
        tensor, expert or pipeline parallelism waits for most of it: the next operator needs the
        result. Where other processes leave no core idle what is named is what could hide behind
        sleeping, or else has no saving either.

    Why it costs time
        The device waits for a result, and then the links wait for the device. Overlapped they take
        the longer of the two times, in turn their sum.

    What to do
        Call with ``async_op=True`` and wait where the result is used; start the reduction of each
        bucket as its gradients are ready; prefetch the next layer's parameters. The potential
        saving is that of the run replayed without these waits, at most the smaller of the two
        times, and where parameters are gathered with each gather right behind the last, and on CPUs
        what the ranks' processes leave idle of the cores. Where calls run asynchronously already,
        what is left comes after the last compute (buckets of other sizes, fewer bytes), or the host
        launches that compute too late (launch-gap). Where no core is idle only less communication
        helps, or more cores; and so it is where nearly all compute runs beside communication, as
        by keeping parameters from forward to backward. Where a mesh's
        dimension of much traffic spans hosts and one of little lies within them, the two should
        change places.

    Blind spots
        Whether the compute is independent: a trace does not show which result it needs, and
        compute that needs it cannot hide it. Where the run cannot be replayed (see straggler),
        exposed time includes waiting for late ranks and hosts; where ranks lack a trace file
        nobody knows whether it is waiting for these, and the finding is not sure.
        Without recorded shapes calls count as asynchronous if compute launched later runs
        beside them.
    """

    may_be_needed: ClassVar[bool] = True

    min_step_share: float = 0.05
    large_step_share: float = 0.15
    hidden_pct: float = 80.0
    min_hideable_pct: float = 10.0

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, of all devices together."""
        found = per_device(run)
        if not found.rank.size:
            raise CannotLook("needs a device with both communication and compute")
        its = mostly_needed_at_once(run) if self._computes(found) else None
        if its is not None:
            yield from self._at_once(found, run, *its)
            return
        if (turned := self._turned(found, run)) is not None:
            yield turned
            return
        could = median(found.gain_ns)
        behind = hideable(run) if self._is_much(could, run) else None
        gain, on_top = could if behind is None else min(could, behind.total_ns), None
        is_tried = replayable(run) and self._is_much(gain, run)
        if is_tried:
            full = full_cores(run)
            gain, on_top = self._hidden(run, gain, beside_full_cores=full is not None)
            if full is not None and not self._is_much(gain, run):
                yield self._beside_full_cores(found, run, full)
                return
        if replayable(run) and self._is_much(could, run):
            late, then = beside_backward_ns(run, could, self.min_step_share)
            gain, on_top = (late, then) if late > gain else (gain, on_top)
        hidden = 100 * median(1 - found.exposed_ns / found.communication_ns)
        exposed = median(found.exposed_ns)
        helps = 100 * gain >= self.min_hideable_pct * exposed and hidden < self.hidden_pct
        if helps and self._is_much(gain, run):
            worth = most_worth_hiding(run) if is_tried else most_exposed(run)
            yield self._finding(found, Saving(round(gain), on_top), hidden, run, *worth)
        elif hidden < self.hidden_pct and self._is_large(exposed_in_all_ns(run, found), run):
            unsaved = [*self._on_callers_stream(found, run)] if self._is_large(could, run) else []
            if not unsaved and behind is not None and behind.total_ns < could:
                unsaved = [self._behind_backward(found, run, behind)]
            op, _ = most_exposed(run)
            if not unsaved and op is not None and _is_bound(found):
                unsaved = [self._bound(found, run, op)]
            if not unsaved:
                unsaved = [*self._misplaced(found, run)]
            if not unsaved:
                gains = f"; replayed so, the run gains {ms(gain) if gain else 'nothing'}"
                raise CannotLook(
                    "needs communication whose hiding saves time: of the "
                    f"{ms(exposed)}{_each(found)} that runs with no compute beside it compute "
                    f"could hide {ms(could)}{gains if is_tried else ''}"
                )
            yield from unsaved

    def _is_large(self, cost_ns: float, run: Measures) -> bool:
        return worth_reporting(cost_ns, run, self.large_step_share)

    def _is_much(self, cost_ns: float, run: Measures) -> bool:
        return worth_reporting(cost_ns, run, self.min_step_share)

    def _hidden(
        self, run: Measures, gain_ns: float, *, beside_full_cores: bool
    ) -> tuple[float, int | None]:
        """What hiding so much saves in the replayed run, as far as cores are idle; and on top."""
        if beside_full_cores:
            asleep = asleep_ns(run)  # no recording may say it
            gain_ns = min(gain_ns, median([*asleep.values()]) if asleep else 0.0)
        on_top: int | None = None
        if self._is_much(gain_ns, run):
            gain_ns, on_top = hidden_ns(run, gain_ns, self.min_step_share)
            if (idle := idle_cores_ns(run)) is not None:
                gain_ns, on_top = min(gain_ns, idle), min(on_top or 0, idle)
        if beside_full_cores:
            on_top = min(on_top or 0, round(gain_ns))
        return gain_ns, on_top

    def _computes(self, found: Devices) -> bool:
        """Whether there is compute worth hiding behind, beside communication or not."""
        compute_ns = found.free_ns + found.communication_ns - found.exposed_ns
        share = compute_ns / found.exposed_ns.clip(min=1)
        return 100 * median(share) >= self.min_hideable_pct

    def _at_once(self, found: Devices, run: Measures, op: str, whose: str) -> Iterator[Finding]:
        """What is exposed where the next operator needs the result: nothing tells what is saved."""
        if self._is_large(exposed_in_all_ns(run, found), run):
            why = f"mostly {whose}'s {op}, whose result the next operator needs"
            advice = many_small(run, op) + overlapped(run, asynchronous(run, op), op, starved=False)
            its = self._unsaved(found, run, op, self.large_step_share, why, advice)
            yield swapped(its, run, whose, self.min_step_share)

    def _misplaced(self, found: Devices, run: Measures) -> Iterator[Finding]:
        """What is exposed of groups that would be faster within hosts; nothing of others."""
        op, _ = most_exposed(run)
        if op is None or not self._is_large(exposed_in_all_ns(run, found), run):
            return
        its = whose(run, op)
        why = f"mostly {its}'s {op}" if its else f"mostly {op}"
        here = self._unsaved(found, run, op, self.large_step_share, why, "")
        better = swapped(here, run, its, self.min_step_share)
        if better is not here:
            yield better

    def _turned(self, found: Devices, run: Measures) -> Finding | None:
        """What is exposed of a mesh that lies the wrong way round; None of another."""
        op, _ = most_exposed(run)
        if op is None or not self._is_large(exposed_in_all_ns(run, found), run):
            return None
        why = f"mostly {op} across hosts"
        its = self._unsaved(found, run, op, self.large_step_share, why, "")
        return transposed(its, run, self.min_step_share)

    def _on_callers_stream(self, found: Devices, run: Measures) -> Iterator[Finding]:
        """What compute waits for by its stream's order alone: no replay knows another order."""
        op, _ = most_exposed(run)
        if op is not None and on_callers_stream(run, op):
            why = f"mostly {op}, which runs on the stream of the compute behind it"
            advice = asked(run, op) + overlapped(run, asynchronous(run, op), op, starved=False)
            yield self._unsaved(found, run, op, self.large_step_share, why, advice)

    def _behind_backward(self, found: Devices, run: Measures, behind: Hideable) -> Finding:
        """What is exposed of gradients' reductions, which backward cannot hide."""
        op = str(most_exposed(run)[0])
        what = f"only {ms(behind.backward_ns)} of backward" if behind.backward_ns else "no backward"
        why = f"mostly {op} of gradients, and {what} runs with no communication beside it"
        advice = f"{asked(run, op)}{less(run, op)}"
        return self._unsaved(found, run, op, self.large_step_share, why, advice)

    def _bound(self, found: Devices, run: Measures, op: str) -> Finding:
        """What is exposed where communication lasts longer than the compute that hides it."""
        why = f"mostly {op}, and nearly all compute runs beside communication already"
        return self._unsaved(found, run, op, self.large_step_share, why, doing_less(run, op))

    def _beside_full_cores(self, found: Devices, run: Measures, why: str) -> Finding:
        """What is exposed; CannotLook where that is little."""
        used = cores_used(run) or 0.0
        # Where others take the cores it may be worth hiding once these are gone.
        least = self.large_step_share if used >= FULL else self.min_step_share
        if not worth_reporting(exposed_in_all_ns(run, found), run, least):
            raise CannotLook(f"needs idle cores: {why}, so that overlapping would save nothing")
        ops = longest(run)
        most, op = " and ".join(ops) or "waiting", ops[0] if ops else None
        why = f"most of it {most}; {why}, so that overlapping would save nothing"
        advice = (
            f"{asked(run, op)}communicate less: only what is needed, {fewer_bytes(run, ops)}or "
            "less often; or give each rank more cores"
        )
        cores = Evidence("used of the CPU cores", min(100 * used, 100.0), "%", 100 * FULL)
        return self._unsaved(found, run, op, least, why, advice, cores)

    def _unsaved(
        self,
        found: Devices,
        run: Measures,
        op: str | None,
        least: float,
        why: str,
        advice: str,
        *more: Evidence,
    ) -> Finding:
        """What is exposed, of which no saving is known."""
        exposed = exposed_in_all_ns(run, found)
        share = share_pct(exposed, run)
        doubt, first = may_wait(run, _all_of(run, op))
        return self.finding(
            run.rows("collectives"),
            summary=(
                f"{ms(exposed)} of communication{_each(found)} runs with no compute beside it, "
                f"{percent(share, 100)} {of_time(run)}, {why}"
                f"{f' (not sure: {doubt})' if doubt else ''}"
            ),
            ranks=tuple(distinct(found.rank).tolist()),
            cost_ns=0,
            evidence=(
                Evidence("exposed communication", exposed, "ns"),
                Evidence(f"exposed, {of_time(run)}", share, "%", 100 * least),
                *more,
            ),
            advice=first + advice + (to_compare(run, op) if op else ""),
            confidence="low",
            operations=_all_of(run, op),
            weighs_ns=round(self.min_step_share * whole(run).time_ns),
        )

    def _finding(
        self,
        found: Devices,
        gain: Saving,
        hidden: float,
        run: Measures,
        most: str | None,
        part: float,
    ) -> Finding:
        share = share_pct(gain.cost_ns, run)
        exposed = exposed_in_all_ns(run, found)
        op = most or "unknown operations"
        is_most = most == most_exposed(run)[0]
        which = f"mostly {op}" if is_most else f"{part:.0f} % of it {op}, which is worth hiding"
        calls, late = asynchronous(run, most), unlaunched_ns(run)
        starved = late > exposed / 2 and len(calls.phase) > 0 and bool(calls.asynchronous.all())
        doubt, first = why_unsure(run, _all_of(run, most))
        communication = run.rows("collectives")
        if not len(communication):  # of kernels of libraries that name no operations
            kernels = run.rows("kernels")
            communication = kernels.take(kernels.coded("kind").being("communication"))
        return self.finding(
            communication,
            summary=(
                f"{ms(exposed)} of communication{_each(found)} runs with no compute beside it, "
                f"{which}; compute could hide {ms(gain.cost_ns)}"
                f"{f' (not sure: {doubt})' if doubt else ''}"
            ),
            ranks=tuple(distinct(found.rank).tolist()),
            saving=gain,
            evidence=(
                Evidence("exposed communication", exposed, "ns"),
                Evidence("compute without communication", median(found.free_ns), "ns"),
                Evidence(f"could be hidden, {of_time(run)}", share, "%", 100 * self.min_step_share),
                Evidence("communication that is hidden", hidden, "%", self.hidden_pct),
                Evidence(f"share of {op} in what is exposed", part, "%"),
                Evidence("of it before the next compute was launched", late, "ns"),
                *of_unrecorded(run),
            ),
            ruled_out=(
                ("compute of other steps: each step's communication has its own compute",)
                if has_steps(run)
                else ()
            ),
            operations=_all_of(run, most),
            advice=first
            + asked(run, most)
            + overlapped(run, calls, op, starved=starved)
            + to_compare(run, op),
            explained_by="launch-gap" if starved else None,
            confidence="low" if doubt else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """In each step 4 ms of all_reduce and then 4 ms of compute."""
        return _run(compute_at=4500)

    @staticmethod
    def good() -> Measures:
        """The same at once."""
        return _run(compute_at=500)


def _run(compute_at: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(3):
        for rank in (0, 1):
            run.step(rank, step, step * 10_000, 10_000)
            run.collective(rank, "all_reduce", step * 10_000 + 400, 4000, size=1 << 26)
            run.kernel(rank, step * 10_000 + compute_at, 4000)
    return run.trace()


def _is_bound(found: Devices) -> bool:
    """Whether nearly all compute is beside communication, and as much as half of what is exposed.

    Else it is a program that only communicates, as a benchmark, or one that does not overlap.
    """
    overlapped_ns = found.communication_ns - found.exposed_ns
    nearly_all = _NEARLY_ALL * (found.free_ns + overlapped_ns) <= overlapped_ns
    much = 2 * (found.free_ns + overlapped_ns) >= found.exposed_ns
    return bool(median(nearly_all & much) > 0)


def _each(found: Devices) -> str:
    count = found.rank.size
    return f" (median of {count} devices)" if count > 1 else ""


def _all_of(run: Measures, op: str | None) -> Int64:
    """The numbers of one operation's; none where it is unknown. A message has both of its ends."""
    its, names = matched(run).operations, POINT_TO_POINT if op in POINT_TO_POINT else {op}
    numbers: Int64 = its.ints("operation")[its.coded("op").where(names.__contains__)]
    return numbers
