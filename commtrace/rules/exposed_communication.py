"""Communication runs while the device computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.arrays import distinct
from commtrace.causal.run.replayable import replayable
from commtrace.causal.savings import Saving, of_unrecorded
from commtrace.causal.work.cores import asleep_ns, full_cores, idle_cores_ns
from commtrace.diagnosis import LOOKED, CannotLook, Evidence, Finding
from commtrace.metrics.rank.exposed_calls import asynchronous, most_exposed, unlaunched_ns
from commtrace.metrics.run.used_at_once import used_at_once
from commtrace.metrics.run.whole import has_steps, of_time, share_pct, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._at_once import mostly_needed_at_once
from commtrace.rules._backward import hideable
from commtrace.rules._between_hosts import to_compare
from commtrace.rules._bound import is_bound
from commtrace.rules._exposed import (
    Devices,
    exposed_in_all_ns,
    of_devices,
    operations_named,
    per_device,
)
from commtrace.rules._hidden import beside_backward_ns, hidden_ns, most_worth_hiding
from commtrace.rules._less import asked
from commtrace.rules._of_replicas import OfReplicas, of_replicas
from commtrace.rules._overlapped import overlapped
from commtrace.rules._parameter_gathers import gathers_parameters
from commtrace.rules._rule import Rule
from commtrace.rules._unsaved import Unsaved
from commtrace.rules._unsure import why_unsure
from commtrace.synthetic import Tiny
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures


_NEARLY_ALL = 0.75  # of what is exposed


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
        result, as it does on CPUs where shapes, if recorded, show that it works on as many numbers.
        What data parallelism of GPUs could hide beside that is a finding of its own. Where
        other processes leave no core idle what is named is what could hide behind sleeping, or else
        has no saving either.

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
        """One finding of all devices, and of data parallelism where most else is needed at once."""
        found = per_device(run)
        if not found.rank.size:
            raise CannotLook("needs a device with both communication and compute")
        unsaved = Unsaved(self, run, found, self.min_step_share, self.large_step_share)
        its = mostly_needed_at_once(run) if self._computes(found) else None
        if its is not None:
            of_data = of_replicas(run, self.min_step_share) if replayable(run) else None
            if of_data is not None:
                yield self._of_replicas(of_data, run)
            yield from unsaved.at_once(*its)
            return
        if turned := [*unsaved.turned()]:
            yield from turned
            return
        could = median(found.gain_ns)
        behind = hideable(run) if self._is_much(could, run) else None
        gain, on_top = could if behind is None else min(could, behind.total_ns), None
        is_tried = replayable(run) and self._is_much(gain, run)
        if is_tried:
            full = full_cores(run)
            gain, on_top = self._hidden(run, gain, beside_full_cores=full is not None)
            if full is not None and not self._is_much(gain, run):
                yield unsaved.beside_full_cores(full)
                return
        if replayable(run) and self._is_much(could, run):
            late, then = beside_backward_ns(run, could, self.min_step_share)
            gain, on_top = (late, then) if late > gain else (gain, on_top)
        hidden = 100 * median(1 - found.exposed_ns / found.communication_ns)
        exposed = median(found.exposed_ns)
        helps = 100 * gain >= self.min_hideable_pct * exposed and hidden < self.hidden_pct
        if helps and self._is_much(gain, run):
            if (op := most_exposed(run)[0]) and self._is_used_at_once(run, op):
                yield from unsaved.used_at_once(op)
                return
            worth = most_worth_hiding(run) if is_tried else most_exposed(run)
            yield self._finding(found, Saving(round(gain), on_top), hidden, run, *worth)
        elif (hidden < self.hidden_pct or is_bound(found)) and unsaved.is_large:
            besides = [*unsaved.without_hiding(behind, could)]
            if not besides:
                gains = f"only {ms(gain)}" if gain else "nothing"
                replayed = f", but with that hidden the replayed run gains {gains}"
                raise CannotLook(
                    f"{LOOKED}hiding saves too little: {ms(exposed)}{of_devices(run, found)} runs "
                    f"with no compute beside it; there is compute to hide {ms(could)} of it"
                    f"{replayed if is_tried else ''}"
                )
            yield from besides

    def _is_used_at_once(self, run: Measures, op: str) -> bool:
        """Whether nothing can hide it; parameters can be gathered before what uses them is next."""
        return not gathers_parameters(run, op) and used_at_once(run, op) >= _NEARLY_ALL

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
        doubt, first = why_unsure(run, operations_named(run, most))
        communication = run.rows("collectives")
        if not len(communication):  # of kernels of libraries that name no operations
            kernels = run.rows("kernels")
            communication = kernels.take(kernels.coded("kind").being("communication"))
        return self.finding(
            communication,
            summary=(
                f"{ms(exposed)} of communication{of_devices(run, found)} runs with no compute "
                f"beside it, {which}; compute could hide {ms(gain.cost_ns)}"
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
            operations=operations_named(run, most),
            advice=first
            + asked(run, most)
            + overlapped(run, calls, op, starved=starved)
            + to_compare(run, op),
            explained_by="launch-gap" if starved else None,
            confidence="low" if doubt else "medium",
        )

    def _of_replicas(self, its: OfReplicas, run: Measures) -> Finding:
        share = share_pct(its.gain.cost_ns, run)
        return self.finding(
            run.rows("collectives", its.rows),
            summary=(
                f"{ms(its.exposed_ns)} of data parallelism's {its.op} runs with no compute beside "
                f"it; compute could hide {ms(its.gain.cost_ns)}"
            ),
            ranks=tuple(distinct(run.rows("collectives", its.rows).ints("rank")).tolist()),
            saving=its.gain,
            evidence=(
                Evidence("exposed of it, mean of ranks", its.exposed_ns, "ns"),
                Evidence(f"could be hidden, {of_time(run)}", share, "%", 100 * self.min_step_share),
                *of_unrecorded(run),
            ),
            advice=its.advice,
            confidence="medium",
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
