"""Kernels run more slowly beside communication than alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.rank.kernels_beside import covered_shares
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.metrics.run.kernels_compared import Compared, kernels_compared
from commtrace.metrics.run.whole import profiler_steps, worth_reporting
from commtrace.quantiles import median, quantiles
from commtrace.rules._crowded_cores import Crowded, crowded_cores
from commtrace.rules._rule import Rule, too
from commtrace.rules._taken_core import TakenCore, taken_core
from commtrace.synthetic import Tiny
from commtrace.table import Rows, Table
from commtrace.trace_tables import KERNELS
from commtrace.units import counted, ms, numbered, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

_BIND = (
    "bind each process to cores of its own, or to none (taskset -pc PID, os.sched_getaffinity(0): "
    "launchers and containers bind, too); they wait for each other's time on these"
)
_BY_OTHERS = (
    "look at what runs there (ps -eLo psr,pcpu,comm: other jobs, a neighbour, its own loader's "
    "workers), and give the rank cores of its own (taskset, numactl, the launcher's binding)"
)
_BY_OWN = (
    "a thread beside the one that trains (prefetching, logging, a checkpoint, a server) computes "
    "meanwhile: do less there, or in another process, or give the rank more cores"
)
_BESIDE = 0.8  # of a kernel's time
_ALONE = Table(
    "alone",
    "one kernel beside which no communication ran",
    KERNELS.only(("name", "start_ns", "duration_ns")),
)


class Contention(Rule, frozen=True):
    """Compute kernels slow down while communication runs on the same GPU; threads wait for cores.

    What it detects
        Kernels of one kind, that is of one name and between the same two before and behind, of
        which at least ``min_kernels`` ran beside communication and as many alone, the middle half
        of each within ``spread_pct``. Those beside took longer by more than a factor of
        ``min_slowdown`` (and not of ``max_slowdown``: that is another shape of the same kernel, and
        so it is where more than a few take as long alone, too): all kinds together, at least half
        of them by time, and on most of the GPUs where any could be compared. At least
        ``min_step_share`` of the steps' time was lost that way, by these kernels and, taken to be
        as much slower, by what else ran beside communication, up to three times as much.
        On CPUs processes that compute with more threads, together, than the cores they may use,
        where the one that waits longest for a core does so for a tenth of its time or more; so it
        is of processes that are bound to the same cores, though the host has others. Or one rank
        that waits for a core for 15 % of its time or more in nearly every step, four times as long
        as any other: something else runs on its core.

    Why it costs time
        Communication kernels occupy multiprocessors and memory bandwidth that compute needs.
        Overlap hides communication, but less than it seems. Threads without a core are waited for
        by those that have one, some of which spin meanwhile.

    What to do
        Fewer NCCL channels (``NCCL_MAX_NCHANNELS``), copy engines or in-network reduction
        where there are any; move communication beside kernels that are bound elsewhere. As many
        threads as cores: what that saves no trace tells.

    Blind spots
        A kernel's shape is not in the trace: where a layer that is always beside communication
        runs the kernels of another one on other shapes, it looks the same; of a single kind this is
        told with low confidence. Kernels that never run alone. Communication that only waits for
        a late rank slows kernels as well. How long threads wait for cores only commtrace's recorder
        notes.
    """

    min_kernels: int = 10
    min_slowdown: float = 1.1
    max_slowdown: float = 3.0
    spread_pct: float = 15.0
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding, with the worst of the devices that have the fault; one of cores."""
        crowded = crowded_cores(run)
        is_much = crowded and worth_reporting(crowded.waited_ns, run, self.min_step_share)
        if crowded is not None and is_much and len(profiler_steps(run)):
            yield self._of_cores(run, crowded)
        elif (taken := taken_core(run)) is not None and worth_reporting(
            taken.cost_ns, run, self.min_step_share
        ):
            yield self._of_one(run, taken)
        compared = self._compared(run)
        if not compared:
            raise CannotLook(
                f"needs a kernel that ran {self.min_kernels} times beside communication and as "
                "often alone"
            )
        slow = [one for one in compared if min(one.times, one.usual_times) > self.min_slowdown]
        if 2 * len(slow) <= len(compared):
            return
        worth = [one for one in slow if worth_reporting(one.lost_ns, run, self.min_step_share)]
        if worth:
            worst = max(worth, key=lambda one: one.lost_ns)
            yield self._finding(run, worst, tuple(sorted({one.rank for one in worth})))

    def _compared(self, run: Measures) -> list[Compared]:
        """Of each device's kernels the times beside communication and alone, if steady."""
        ranks = sorted(ranks_of(run, "kernels"))
        if not any(map(partial(_computes, run), ranks)) or not _communicates(run):
            raise CannotLook("needs compute kernels and communication on one GPU")
        limits = self.min_kernels, self.min_slowdown, self.max_slowdown, self.spread_pct
        return kernels_compared(run, *limits)

    def _of_cores(self, run: Measures, its: Crowded) -> Finding:
        steps = profiler_steps(run)
        most = max(its.threads)
        least = "" if most == min(its.threads) else f"{min(its.threads)} to "
        unsure = f" (not sure: other processes took {percent(its.others, 1)} of the cores)"
        return self.finding(
            steps.when(),
            summary=(
                f"{len(its.ranks)} processes of {least}{counted(most, 'thread')} each "
                f"{'are bound to' if its.bound else 'share'} {counted(its.cores, 'core')}: a rank "
                f"waits for one for {ms(its.waited_ns / max(its.steps, 1))} of each step"
                + (unsure if not its.is_sure else "")
            ),
            ranks=its.too_many if len(its.too_many) < len(run.rows("ranks")) else (),
            evidence=(
                Evidence("threads of all processes", sum(its.threads), "threads", its.cores),
                Evidence("waiting for a core", 100 * its.share, "%"),
                Evidence("cores that others took", 100 * its.others, "%"),
            ),
            advice=_BIND
            if its.bound
            else (
                f"torch.set_num_threads({its.fit}), or OMP_NUM_THREADS={its.fit} (torchrun sets 1 "
                "where nothing is set): threads without a core slow those that have one"
            ),
            confidence="medium" if its.is_sure else "low",
            weighs_ns=its.waited_ns // 2,  # with fewer threads some of the work remains
        )

    def _of_one(self, run: Measures, its: TakenCore) -> Finding:
        on = f" (it is bound to {numbered('core', its.cores)})" if its.bound and its.cores else ""
        sure = its.bound or its.by_own
        doubt = "" if sure else " (not sure: it may be chance which rank's core others take)"
        what = f"something else runs on its own{on}{doubt}"
        if its.by_own:
            what = f"other threads of its own run for {ms(its.own_ns)} meanwhile{on}"
        return self.finding(
            profiler_steps(run).when(),
            summary=(
                f"rank {its.rank} waits for a core for {ms(its.waits_ns)} of each step, others for "
                f"{ms(its.others_ns)} at most: {what}"
            ),
            ranks=(its.rank,),
            cost_ns=its.cost_ns,
            evidence=(
                Evidence("waiting for a core, median step", its.waits_ns, "ns"),
                Evidence("the most of any other rank", its.others_ns, "ns"),
            ),
            advice=_BY_OWN if its.by_own else _BY_OTHERS,
            confidence="medium" if sure else "low",
            explains=("exposed-communication",),
        )

    def _finding(self, run: Measures, worst: Compared, ranks: tuple[int, ...]) -> Finding:
        rank, device = worst.rank, str(worst.kernels.coded("device").at(0))
        slow = worst.take(worst.slowdown > self.min_slowdown)
        names = frozenset(slow.kernels.coded("name").occurring())
        lost = round(worst.lost_ns)
        kernels, share = _kernels(run, rank, names)
        return self.finding(
            kernels.take((share >= _BESIDE) & kernels.coded("device").being(device)),
            summary=(
                f"kernels on rank {rank}'s {device} take {worst.times:.2f} times as long beside "
                f"communication as alone: {ms(lost)} lost{too(ranks, rank, run)}"
            ),
            ranks=ranks,
            cost_ns=lost,
            evidence=(
                Evidence(
                    "time beside communication over time alone",
                    worst.times,
                    "x",
                    self.min_slowdown,
                ),
                Evidence(
                    "kernels beside communication",
                    int(slow.kernels.ints("count_beside").sum()),
                    "kernels",
                ),
                Evidence("kinds of kernels that are slower", len(slow.kernels), "kinds"),
                Evidence("kinds of kernels compared", len(worst.kernels), "kinds"),
                Evidence(
                    "share of the compute beside communication that was compared",
                    100 * worst.share,
                    "%",
                ),
            ),
            confidence="medium" if len(slow.kernels) > 1 else "low",
            ruled_out=(
                ("throttling: the same kernels run at full speed when no communication runs",)
                if _steady_over_time(run, names)
                else ()
            ),
            advice=(
                "let communication use fewer multiprocessors (NCCL_MAX_NCHANNELS) or copy engines, "
                "and measure whether its own time grows by less than compute gains"
            ),
        )

    @staticmethod
    def bad() -> Measures:
        """Each kernel takes 100 µs alone and 150 µs beside an all_reduce."""
        return _run(beside_us=150)

    @staticmethod
    def good() -> Measures:
        """They take 105 µs beside the all_reduce."""
        return _run(beside_us=105)


def _run(beside_us: float) -> Measures:
    run = Tiny()
    for step in range(12):
        start = step * 1000
        run.step(0, step, start, 1000)
        run.collective(0, "all_reduce", start + 400, 500, size=1 << 24)
        for i, name in enumerate(("gemm", "norm", "add")):
            run.kernel(0, start + 10 + i * 120, 100, name=name)
            run.kernel(0, start + 405 + i * 160, beside_us, name=name)
    return run.trace()


def _computes(run: Measures, rank: int) -> bool:
    kind = run.rows("kernels", places_of_rank(run, "kernels", rank)).coded("kind")
    return bool(kind.being("compute").any())


def _communicates(run: Measures) -> bool:
    return bool((~run.rows("collectives").coded("device").being("cpu")).any())


def _kernels(run: Measures, rank: int, names: frozenset[str]) -> tuple[Rows, Float64]:
    """A rank's compute kernels of some names, and each one's share beside communication."""
    its = run.rows("kernels", places_of_rank(run, "kernels", rank))
    named = its.coded("name").where(names.__contains__)
    its = its.take(np.flatnonzero(its.coded("kind").being("compute") & named))
    return its, covered_shares(
        run, rank, its.coded("device"), its.ints("start_ns"), its.ints("duration_ns")
    )


def _steady_over_time(run: Measures, names: frozenset[str]) -> bool:
    """Whether the kernels that ran alone were as fast late in the run as early, on any rank."""
    every = (_kernels(run, rank, names) for rank in ranks_of(run, "kernels"))
    alone = _ALONE.rows(*(kernels.take(share == 0).columns for kernels, share in every))
    late = alone.ints("start_ns") > median(alone.ints("start_ns"))
    name, count = alone.coded("name").codes.astype(np.int64), len(alone.coded("name").names)
    early_ns, late_ns = (
        quantiles(name[which], alone.ints("duration_ns")[which], 50, count)
        for which in (~late, late)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = late_ns / early_ns
    return not (ratio >= 1.05).any()
