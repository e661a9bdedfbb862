"""Every rank waits for its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from commtrace.causal.alike import without
from commtrace.causal.loading import loading, loading_when
from commtrace.causal.savings import saving
from commtrace.causal.work.cores import idle_cores_ns, taken_cores
from commtrace.causal.work.segments import own_parts
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._each_step import how_long, stalls
from commtrace.rules._rule import Rule
from commtrace.rules._stalls import label_in
from commtrace.synthetic import Tiny

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SINGLE = "SingleProcess"
_READ_AHEAD = (
    "load in other processes (DataLoader's num_workers, with persistent_workers=True), or prepare "
    "the data beforehand"
)
_KEEP = (
    "keep the loader's workers from one epoch to the next (persistent_workers=True, or one "
    "iterator for all epochs): what stalls now and then is mostly their start; else read farther "
    "ahead (prefetch_factor)"
)
_FASTER = (
    "more workers (num_workers), a larger prefetch_factor, cheaper transforms, or faster storage"
)


class InputBound(Rule, frozen=True):
    """Every rank waits for its data.

    What it detects
        Time that hosts spend in their data loaders. The run is replayed with each rank's data
        there at once, as far as the median rank loads as long in the same step: what one loads
        longer than the others is a straggler's. It fires where this saves at least
        ``min_step_share`` of the steps' time.

    Why it costs time
        All ranks wait alike, so that nobody waits for another: neither communication nor imbalance
        shows it, and no change of communication makes the steps shorter.

    What to do
        Load in other processes, and enough of them; keep these from one epoch to the next; prefetch
        more; make transforms cheaper, or prepare the data beforehand; read from faster storage.

    Blind spots
        Only PyTorch's DataLoader labels its time; what a program reads by itself is host time as
        any other. Processes that load need cores: on CPUs no more is promised than the ranks'
        processes leave idle, and of their machine's storage and memory a trace says nothing; on
        GPUs no more than the time in which the one that computes most does not.
    """

    explains: ClassVar[tuple[str, ...]] = ("launch-gap",)

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, of all ranks that load."""
        its = loading(run)
        each = its.steps_ns.mean(axis=0)
        if not each.any():
            few = own_parts(run)["loader"].any()
            where = "most ranks' traces: few load" if few else "the trace"
            raise CannotLook(f"needs a DataLoader's label in {where}")
        idle_ns = _idle_devices_ns(run)
        at_least = int(its.steps_ns.min(axis=0).sum())
        at_least = at_least if idle_ns is None else min(at_least, idle_ns)
        gain = saving(
            run, lambda lag_ns: without(run, its, lag_ns), at_least, self.min_step_share
        ).at_most(idle_cores_ns(run), run)
        gain = gain.at_most(idle_ns, run)
        # What those do longer who delay the others is theirs, though they be most of the ranks.
        left = min(gain.cost_ns, gain.left_ns)
        if not worth_reporting(left, run, self.min_step_share):
            return
        ranks = its.who
        when = loading_when(run, ranks[0])
        label, seldom = label_in(run, ranks[0], when) or "", stalls(each) > 0
        if (taken := taken_cores(run)) and _SINGLE not in label:
            taken = f"{taken}; the loader's workers may be among them"
        yield self.finding(
            when,
            summary=f"{_who(run, ranks)} for data {how_long(run, each)}"
            + (f" (not sure: {taken})" if taken else ""),
            ranks=ranks,
            streams=(),
            saving=gain,
            cause="loader",
            evidence=(
                Evidence("in data loaders, of the mean rank", float(each.sum()), "ns"),
                Evidence(
                    f"share {of_time(run)}",
                    share_pct(gain.cost_ns, run),
                    "%",
                    100 * self.min_step_share,
                ),
            ),
            ruled_out=("a straggler: only what the median rank loads, too, is counted",),
            advice=_advice(label, few=seldom),
            confidence="low" if taken else "medium" if gain.why or seldom else "high",
        )

    @staticmethod
    def bad() -> Measures:
        """Both ranks load for 4 ms of each step of 10."""
        return _run(loads_us=4000)

    @staticmethod
    def good() -> Measures:
        """The same for 0.3 ms."""
        return _run(loads_us=300)


def _idle_devices_ns(run: Measures) -> int | None:
    """How long the GPU that computes most does not: its compute no loader makes shorter.

    Before its first recorded work it may have had older. None without a GPU.
    """
    every = devices(run)
    gpus = every.take(~every.coded("device").being("cpu"))
    idle_ns = gpus.ints("span_ns") - gpus.ints("compute_ns")
    return int(idle_ns.min()) if idle_ns.size else None


def _run(loads_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(6):
        start = step * 10_000
        for rank in (0, 1):
            run.step(rank, step, start, 10_000)
            run.step(rank, step, start + 10, loads_us, label=_LABEL)
            run.kernel(rank, start + loads_us + 20, 9000 - loads_us)
            run.collective(rank, "all_reduce", start + 9100, 800, size=1 << 20)
    return run.trace()


_LABEL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _who(run: Measures, ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    every = len(ranks) == len(run.rows("ranks"))
    return "all ranks wait" if every else f"{len(ranks)} ranks wait"


def _advice(label: str, *, few: bool) -> str:
    if _SINGLE in label:
        return _READ_AHEAD
    return _KEEP if few else _FASTER
