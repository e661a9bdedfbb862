"""Some ranks are late, and all the others wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.blame.culprits import culprits
from commtrace.causal.savings import of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._culprit import delays
from commtrace.rules._late_elsewhere import late_elsewhere
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures


class Straggler(Rule, frozen=True):
    """Ranks that do more between two collectives than the others, which wait for them there.

    What it detects
        The run is replayed with a rank's own work between two operations as long as is typical
        of the others at the same place of the step. It fires where this saves at least
        ``min_step_share`` of the steps' time: in every step, beyond noise and chance, or mostly
        in a few of them, as a stall does. No other rank may save a quarter of that. Ranks of one
        host or group, and those with the most to do, are tried together as well, and what each
        saves on top of those before it.

    Why it costs time
        A collective moves nothing until its last rank is there. The others spend the wait
        inside the collective, which then looks slow on every rank but the one to blame.

    What to do
        See what it does in the gap: more compute (rebalance), copies (prefetch), or nothing at
        all (data loader, garbage collection, a busy host). Where shapes were recorded
        (``record_shapes=True``) the advice says whether its operators work on larger inputs than
        the others', or take longer for the same: a slow device. The potential saving is what the
        replay saves. A rank that comes late because it waited elsewhere is not blamed.

        A pipeline's stage may run operators or kernels that no other stage runs as often, as a
        vocabulary's, or on more: give it fewer layers. Such work does not vanish, so that the
        potential saving is then that of a replay in which all stages do as much; it is never sure,
        since whole layers may not be even, and moving work changes what else a stage does. What
        leaving that work out would save is said beside it.

        So it is of several ranks of which each computes more than the next, as where causal
        attention is split by sequence: they hide each other, and the potential saving is that of
        even work of all ranks. A rank that both sends and receives messages, and computes more, is
        named here; that it is late to these (late-sender, late-receiver) follows from that.

        A rank without a trace file may be late where operations take its group of GPUs twice as
        long as groups alike once all are there whose files are, while others as large take as long.

    Blind spots
        Lateness below the clocks' error. Mostly, a rank outside the trace. A host's or device's
        waits that the trace lacks count as its own work; where it shows too few of them the finding
        says that it is not sure, or the rule is skipped. Communication that waits slows kernels
        beside it, and the replay keeps the others' as they were: the finding says about how much
        that is, taken to be as much as beside communication that transfers.
    """

    explains: ClassVar[tuple[str, ...]] = (
        "host-late",
        "device-late",
        "late-sender",
        "late-receiver",
        "exposed-communication",
        "pipeline-bubble",
    )

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per rank that is late, or per set of ranks that are late together.

        CannotLook where who is late only takes longer for the same, as on shared cores it can.
        """
        yield from self._elsewhere(run)
        yield from delays(self, run, self.min_step_share, "collective")
        known = culprits(run, self.min_step_share)
        if known.excused and not known.found:
            its = known.excused[0]
            takes = "takes" if len(its.ranks) == 1 else "take"
            raise CannotLook(
                f"needs cores of its own: {numbered('rank', its.ranks)} {takes} {its.slower:.2f} "
                "times as long as others for the same operators on the same inputs, as it can "
                "where processes share cores"
            )

    def _elsewhere(self, run: Measures) -> Iterator[Finding]:
        """A rank that has no trace file."""
        its = late_elsewhere(run)
        if its is None:
            return
        rows = its.operations
        gain = of_transfers(
            run, rows, its.beyond_ns, float(its.beyond_ns.sum()), self.min_step_share
        )
        if gain.why or not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        takes = ms(median(rows.ints("transfer_ns")))
        one_of = "one of " * (len(its.ranks) > 1)
        yield self.finding(
            rows,
            summary=(
                f"{one_of}{numbered('rank', its.ranks)}, without a trace file, may be late: "
                f"{counted(len(rows), str(rows.coded('op').at(0)))} of "
                f"{spoken(run, its.group)} take {takes} in the median once the others are there, "
                f"where {ms(its.usual_ns)} is usual in groups alike"
            ),
            ranks=its.ranks,
            saving=gain,
            evidence=(
                Evidence("median of the operations there", median(rows.ints("transfer_ns")), "ns"),
                Evidence("of the same in groups alike", its.usual_ns, "ns"),
            ),
            ruled_out=("its group's links: other operations as large take as long there",),
            advice="record these ranks, too: their files show which is late, and what it does",
            confidence="low",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 1 computes 4 ms longer than rank 0 before each of twelve all_reduces."""
        return _run((1000, 5000))

    @staticmethod
    def good() -> Measures:
        """The same, each rank in turn."""
        return _run((1000, 5000), in_turn=True)


def _run(compute_us: tuple[float, float], *, in_turn: bool = False) -> Measures:
    run = Tiny(ranks=2)
    for step in range(12):
        start = step * 10_000
        times = compute_us[::-1] if in_turn and step % 2 else compute_us
        for rank, time in enumerate(times):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + 10, time)
            arrival, end = start + 20 + time, start + 8000
            run.collective(rank, "all_reduce", arrival, end - arrival, size=1 << 26)
    return run.trace()
