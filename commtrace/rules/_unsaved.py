"""What is exposed where no replay tells what hiding it saves: why it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from commtrace.arrays import distinct
from commtrace.causal.work.cores import FULL, cores_used
from commtrace.comms import DDP_FORWARD
from commtrace.diagnosis import LOOKED, CannotLook, Evidence, Finding
from commtrace.metrics.rank.exposed_calls import asynchronous, most_exposed, rows_of_operation
from commtrace.metrics.run.exposed_waits import exposed_waits
from commtrace.metrics.run.whole import of_time, share_pct, whole, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._across_hosts import swapped, transposed
from commtrace.rules._at_once import on_callers_stream, whose
from commtrace.rules._backward import Hideable
from commtrace.rules._between_hosts import as_sockets_gb_s, to_compare
from commtrace.rules._bound import doing_less, is_bound
from commtrace.rules._drained import between_waits_ns
from commtrace.rules._exposed import Devices, exposed_in_all_ns, of_devices, operations_named
from commtrace.rules._less import asked, fewer_bytes, less, longest, many_small
from commtrace.rules._overlapped import larger_buckets, overlapped
from commtrace.rules._parameter_gathers import gathers_parameters
from commtrace.rules._rule import Rule
from commtrace.rules._unsure import may_wait
from commtrace.units import ms, percent, rate

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Unsaved"]

_MOSTLY = 0.5  # of what is exposed
_LARGER = (
    "make micro-batches larger, and so fewer: each step sends many small messages, which take "
    "their latency however little is in them; and see whether stages or links are uneven"
)


class Unsaved(Struct, frozen=True, eq=False):
    """Findings of a rule about what devices of a run have exposed.

    It weighs ``min_step_share`` of the time; ``large_step_share`` has to be exposed.
    """

    rule: Rule
    run: Measures
    found: Devices
    min_step_share: float
    large_step_share: float

    @property
    def exposed_ns(self) -> float:
        """How long communication is exposed on the median device."""
        return exposed_in_all_ns(self.run, self.found)

    @property
    def is_large(self) -> bool:
        """Whether that is worth a word though nobody knows what hiding it saves."""
        return worth_reporting(self.exposed_ns, self.run, self.large_step_share)

    @property
    def op(self) -> str | None:
        """The operation that is exposed most."""
        return most_exposed(self.run)[0]

    @property
    def _mostly_waits(self) -> bool:
        """Whether most of what is exposed is waiting for ranks that come later."""
        waits_ns = exposed_waits(self.run).ints("exposed_wait_ns")
        return waits_ns.size > 0 and median(waits_ns) > _MOSTLY * self.exposed_ns

    def at_once(self, op: str, of: str) -> Iterator[Finding]:
        """What is exposed where the next operator needs the result of ``of``'s operation."""
        if self.is_large:
            why = f"mostly {of}'s {op}, whose result the next operator needs"
            small = many_small(self.run, op)
            hands_on_little = small and of == "pipeline parallelism"
            advice = _LARGER if hands_on_little else small + self._overlapped(op)
            its = self._finding(op, why, advice)
            yield swapped(its, self.run, of, self.min_step_share)

    def used_at_once(self, op: str) -> Iterator[Finding]:
        """What is exposed where the program uses most results right away; CannotLook if little."""
        used = f"mostly {op}, whose result the next operator uses"
        if not self.is_large:
            raise CannotLook(
                f"{LOOKED}hiding saves nothing: {ms(self.exposed_ns)}"
                f"{of_devices(self.run, self.found)} runs with no compute beside it, {used}"
            )
        yield self._finding(op, used, f"{asked(self.run, op)}{less(self.run, op)}")

    def turned(self) -> Iterator[Finding]:
        """What is exposed of a mesh that lies the wrong way round; nothing of another."""
        if self.op is not None and self.is_large:
            its = self._finding(self.op, f"mostly {self.op} across hosts", "")
            better = transposed(its, self.run, self.min_step_share)
            yield from () if better is None else (better,)

    def without_hiding(self, behind: Hideable | None, could_ns: float) -> Iterator[Finding]:
        """At most one finding: the first reason that holds, of those that hiding changes little in.

        ``behind`` is what backward can hide of gradients' reductions, ``could_ns`` what compute
        could of all.
        """
        run, op = self.run, self.op
        large = worth_reporting(could_ns, run, self.large_step_share)
        if op is not None and large and on_callers_stream(run, op):
            why = f"mostly {op}, which runs on the stream of the compute behind it"
            yield self._finding(op, why, asked(run, op) + self._overlapped(op))
        elif behind is not None and behind.total_ns < could_ns:
            yield self._behind_backward(behind)
        elif op is not None and is_bound(self.found):
            why = f"mostly {op}, and nearly all compute runs beside communication already"
            yield self._finding(op, why, doing_less(run, op))
        elif op is not None and self._gathers_for_long(op):
            why = f"mostly {op} of parameters, longer than the compute that each is for"
            yield self._finding(op, why, doing_less(run, op))
        elif op is not None and (found := [*self._misplaced(op)]):
            yield from found
        elif op is not None and (gb_s := as_sockets_gb_s(run, op)) is not None:
            why = f"mostly {op}, at {rate(gb_s)} GB/s between hosts"
            yield self._finding(op, why, doing_less(run, op))

    def _gathers_for_long(self, op: str) -> bool:
        """Whether parameters are gathered that compute before the host's next wait could hide."""
        if self._mostly_waits or not gathers_parameters(self.run, op):
            return False
        between = between_waits_ns(self.run, op)
        return between is None or worth_reporting(between, self.run, self.min_step_share)

    def beside_full_cores(self, why: str) -> Finding:
        """What is exposed where no core is idle; CannotLook where that is little."""
        run, used = self.run, cores_used(self.run) or 0.0
        # Where others take the cores it may be worth hiding once these are gone.
        least = self.large_step_share if used >= FULL else self.min_step_share
        if not worth_reporting(self.exposed_ns, run, least):
            raise CannotLook(f"needs idle cores: {why}, so that overlapping would save nothing")
        ops = longest(run)
        most, op = " and ".join(ops) or "waiting", ops[0] if ops else None
        waits = ", and more than half of it waiting for one another" if self._mostly_waits else ""
        why = f"most of it {most}{waits}; {why}, so that overlapping would save nothing"
        less = f"communicate less: only what is needed, {fewer_bytes(run, ops)}or less often"
        cores = "give each rank more cores"
        first = f"{cores}: who shares them comes late by turns; else {less}"
        advice = f"{asked(run, op)}{self._buckets(op)}{first if waits else f'{less}; or {cores}'}"
        use = Evidence("used of the CPU cores", min(100 * used, 100.0), "%", 100 * FULL)
        return self._finding(op, why, advice, use, least=least)

    def _buckets(self, op: str | None) -> str:
        """That DDP's buckets could be larger; empty where they are no small ones of DDP's."""
        by_ddp = self.run.rows("steps").coded("label").being(DDP_FORWARD).any()
        if op != "all_reduce" or not by_ddp:
            return ""
        larger = larger_buckets(self.run, rows_of_operation(self.run, op))
        return f"try {larger}; " if larger else ""

    def _behind_backward(self, behind: Hideable) -> Finding:
        """What is exposed of gradients' reductions, which backward cannot hide."""
        run, op = self.run, str(self.op)
        what = f"only {ms(behind.backward_ns)} of backward" if behind.backward_ns else "no backward"
        why = f"mostly {op} of gradients, and {what} runs with no communication beside it"
        rows = rows_of_operation(run, op)
        larger = larger_buckets(run, rows) if op == "all_reduce" else ""
        first = f"{larger}; " if larger else ""
        return self._finding(op, why, f"{first}{asked(run, op)}{less(run, op)}")

    def _misplaced(self, op: str) -> Iterator[Finding]:
        """What is exposed of groups that would be faster within hosts; nothing of others."""
        of = whose(self.run, op)
        here = self._finding(op, f"mostly {of}'s {op}" if of else f"mostly {op}", "")
        better = swapped(here, self.run, of, self.min_step_share)
        if better is not here:
            yield better

    def _overlapped(self, op: str) -> str:
        return overlapped(self.run, asynchronous(self.run, op), op, starved=False)

    def _beside_links(self, op: str | None, advice: str) -> str:
        """What to do, and to look at links: first where these are as slow as sockets."""
        if op is None:
            return advice
        links = to_compare(self.run, op)
        if as_sockets_gb_s(self.run, op) is None:
            return advice + links
        return f"{links.removeprefix('; ')}; {advice}"

    def _finding(
        self, op: str | None, why: str, advice: str, *more: Evidence, least: float | None = None
    ) -> Finding:
        run, exposed = self.run, self.exposed_ns
        share = share_pct(exposed, run)
        operations = operations_named(run, op)
        doubt, first = may_wait(run, operations)
        threshold = 100 * (self.large_step_share if least is None else least)
        return self.rule.finding(
            run.rows("collectives"),
            summary=(
                f"{ms(exposed)} of communication{of_devices(run, self.found)} runs with no compute "
                f"beside it, {percent(share, 100)} {of_time(run)}, {why}"
                f"{f' (not sure: {doubt})' if doubt else ''}"
            ),
            ranks=tuple(distinct(self.found.rank).tolist()),
            cost_ns=0,
            evidence=(
                Evidence("exposed communication", exposed, "ns"),
                Evidence(f"exposed, {of_time(run)}", share, "%", threshold),
                *more,
            ),
            advice=first + self._beside_links(op, advice),
            confidence="low",
            operations=operations,
            weighs_ns=round(self.min_step_share * whole(run).time_ns),
        )
