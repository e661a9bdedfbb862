"""The trace lacks what some conclusions need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Float64, codes, distinct, first_rows, sums
from commtrace.comms import SYNCHRONISING, bus_factor
from commtrace.diagnosis import Evidence, Finding, Note
from commtrace.metrics.rank.run_ahead import launched_before
from commtrace.metrics.run.missing_ranks import missing_ranks
from commtrace.metrics.run.sampled import is_sampled
from commtrace.metrics.run.span import recorded_apart
from commtrace.metrics.run.unrecorded_work import calls_without_work
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import share_pct, whole, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._held_up import HeldUp, held_up
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.trace_tables import SAMPLED
from commtrace.units import counted, ms, numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

_BROKEN = {
    "truncated": ("broke off", "record again, and stop the profiler before the process ends"),
    "unreadable": ("cannot be read", "copy it, or record it, again"),
    "several-ranks": (
        "came from several processes",
        "give the file that each process wrote, not one made of them",
    ),
    "bad-events": ("held impossible events", "record again: what is left is analysed"),
    "damaged": (
        "came damaged",
        "what could be read is analysed; if the rest is missed, copy the file, or record, again",
    ),
}
"""What a note's code means for a file, and the remedy; the worst first."""

_SAID = 120
_LATE_NS = 10_000
_LARGE_BYTES = 1_000_000
_CRAWL_GB_S = 5.0


class UnfitTrace(Rule, frozen=True):
    """The trace lacks what some conclusions need.

    What it detects
        Files that break off, are damaged, cannot be read, hold several ranks or but a sample of
        their events (most numbers of GPU calls are missing); operations that hosts called and of
        whose work nothing was recorded; ranks recorded at different times; ranks of the job without
        a trace file, with the time of large collectives that are slower than any link in a machine
        (5 GB/s): either they wait for these ranks, or the link is broken; over ``orphaned_pct`` of
        the kernels without their launch, but for what streams still run of before the recording;
        over ``early_pct`` of the GPU's events more than 10 us before their launch, which clocks
        that agree do not show; a GPU that is idle for ``min_step_share`` of the steps' time, over
        1 ms each time, though the next event was launched before it ran dry; and ranks' clocks so
        uncertain that ``clock_errors`` times their error exceeds the time of a typical operation.

    Why it costs time
        It costs yours: waits across ranks, steps and overlap are then lower bounds or guesses, and
        other rules may miss a fault, or be wrong, for no other reason.

    What to do
        Record again: every rank, the same steps, with a profiler that is stopped before the
        process ends; start it a step before the window that matters, so that kernels keep their
        launches. Nothing is saved in the run itself, unless launched work waits for something
        that can be changed.

    Blind spots
        Events that were dropped without a trace are missed, unless they leave half of a pair
        behind or are most of all. One rank of many may be all you have: what it shows of itself
        still holds.
    """

    of_single_events: ClassVar[bool] = True

    orphaned_pct: float = 5.0
    early_pct: float = 1.0
    clock_errors: float = 3.0
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding for each way in which the trace is unfit."""
        whole_files = not is_sampled(run)  # what a sample lacks says nothing else
        yield from self._sampled(run)
        yield from self._broken(run)
        yield from self._unrecorded(run) if whole_files else ()
        yield from self._missing_ranks(run)
        yield from self._apart(run)
        if whole_files:
            yield from self._launches(run)
            yield from self._held_up(run)
            yield from self._clocks(run)

    def _broken(self, run: Measures) -> Iterator[Finding]:
        for code, (what, advice) in _BROKEN.items():
            notes = [note for note in run.notes if note.code == code]
            if notes:
                files = len({note.file for note in notes})
                yield self._finding(
                    run,
                    f"{counted(files, 'file')} {what}: {_shortened(notes[0].message)}",
                    Evidence(f"files: {code}", files, "files", 0),
                    advice,
                    tuple(sorted({note.rank for note in notes if note.rank is not None})),
                )

    def _sampled(self, run: Measures) -> Iterator[Finding]:
        notes = [note for note in run.notes if note.code == SAMPLED]
        if notes:
            finding = self._finding(
                run,
                f"most events of {counted(len(notes), 'file')} are missing: {notes[0].message}; "
                "idle and exposed time, waits and shares mean nothing; single events hold",
                Evidence("files that hold a sample", len(notes), "files", 0),
                "analyse the files as the profiler wrote them, or record again",
                tuple(sorted({note.rank for note in notes if note.rank is not None})),
            )
            yield replace(finding, weighs_ns=whole(run).time_ns)

    def _unrecorded(self, run: Measures) -> Iterator[Finding]:
        if found := calls_without_work(run):
            count = sum(found.values())
            yield self._finding(
                run,
                f"{numbered('rank', found)} called {counted(count, 'operation')} that "
                "communicate, and nothing of what they ran was recorded",
                Evidence("operations without work", count, "operations", 0),
                "profile GPUs, too (activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]); if "
                "that was done, see whether the profiler may trace them (CUPTI's permissions)",
                tuple(found),
            )

    def _missing_ranks(self, run: Measures) -> Iterator[Finding]:
        if missing := missing_ranks(run):
            world = len(missing) + len(_present(run))
            slow, clause = _crawling(run)
            said = clause if worth_reporting(slow, run, self.min_step_share) else ""
            yield self._finding(
                run,
                f"no trace file for {numbered('rank', missing)} of {world}: waiting for "
                f"{'it' if len(missing) == 1 else 'them'} cannot be separated from transfer{said}",
                Evidence("ranks without a trace file", len(missing), "ranks", 0),
                "record every rank in the same steps and give all files together",
            )

    def _apart(self, run: Measures) -> Iterator[Finding]:
        if (apart := recorded_apart(run)) is None:
            return
        lasts, together = apart
        longest, shortest = (pick(lasts, key=lambda rank: lasts[rank]) for pick in (max, min))
        share = 100 * together / max(lasts[longest], 1)
        yield self._finding(
            run,
            f"ranks were recorded at different times, rank {longest} for {ms(lasts[longest])}, "
            f"rank {shortest} for {ms(lasts[shortest])}, all together for {ms(together)}: what one "
            "did while others were not recorded is compared with nothing",
            Evidence("recorded together", share, "%", 50),
            "mark the same steps on every rank, also where no optimizer steps: call "
            "commtrace.step(), or prof.step(), once in each round",
        )

    def _launches(self, run: Measures) -> Iterator[Finding]:
        kernels = run.rows("kernels")
        start, launch = kernels.ints("start_ns"), kernels.ints("launch_ns")
        if not start.size:
            return
        known = launch != NULL
        stream = codes(kernels.ints("rank"), kernels.coded("device").codes, kernels.ints("stream"))
        orphaned = 100 * float((~known & ~launched_before(stream, start, known)).mean())
        if orphaned > self.orphaned_pct:
            yield self._finding(
                run,
                f"{orphaned:.3g} % of the kernels lack their launch: step and cause are unknown",
                Evidence("kernels without a launch", orphaned, "%", self.orphaned_pct),
                "leave CUDA activities and runtime on, and start a step before what matters",
            )
        early = known & (start < launch - _LATE_NS)
        premature = 100 * float(early.sum()) / max(int(known.sum()), 1)
        if premature > self.early_pct:
            yield self._finding(
                run,
                f"{premature:.3g} % of the kernels start before their launch: the clocks of host "
                "and GPU disagree",
                Evidence("kernels before their launch", premature, "%", self.early_pct),
                "record again; times between host and GPU mean nothing in this trace",
                tuple(distinct(kernels.ints("rank")[early]).tolist()),
            )

    def _held_up(self, run: Measures) -> Iterator[Finding]:
        alike: dict[str, list[HeldUp]] = {}
        for its in held_up(run):
            if worth_reporting(its.idle_ns, run, self.min_step_share):
                alike.setdefault(its.advice, []).append(its)
        for advice, every in alike.items():
            worst, ranks = max(every, key=lambda its: its.idle_ns), [its.rank for its in every]
            share = share_pct(worst.idle_ns, run)
            finding = self._finding(
                run,
                worst.said + too(ranks, worst.rank, run),
                Evidence("idle with work launched", share, "%", 100 * self.min_step_share),
                advice,
                tuple(ranks),
            )
            yield replace(finding, confidence="low")

    def _clocks(self, run: Measures) -> Iterator[Finding]:
        found = matched(run)
        transfer_ns = found.operations.ints("transfer_ns")
        shared = (found.operations.ints("present") > 1) & (transfer_ns != NULL)
        error = int(found.clock.ints("error_ns").max(initial=NULL))
        if not shared.any() or error == NULL:
            return
        typical = median(transfer_ns[shared])
        if self.clock_errors * error > typical:
            yield self._finding(
                run,
                f"the ranks' clocks are known to {ms(error)}, a typical operation takes "
                f"{ms(typical)}: small waits cannot be measured",
                Evidence("clock error", error / 1e3, "µs", typical / self.clock_errors / 1e3),
                "record more steps, so that more operations compare the clocks",
            )

    def _finding(
        self,
        run: Measures,
        summary: str,
        evidence: Evidence,
        advice: str,
        ranks: tuple[int, ...] = (),
    ) -> Finding:
        present = _present(run)
        start_ns, end_ns = (run.rows("ranks").ints(name) for name in ("start_ns", "end_ns"))
        known = start_ns != NULL
        return self.finding(
            (start_ns[known], end_ns[known]) if known.any() else ([0], [0]),
            summary=summary,
            ranks=tuple(rank for rank in ranks if rank in present),
            cost_ns=0,
            evidence=(evidence,),
            advice=advice,
            confidence="high",
        )

    @staticmethod
    def bad() -> Measures:
        """A file that breaks off, and kernels that lost their launches."""
        run = _kernels(lost=5)
        run.notes.append(Note("truncated", "the JSON breaks off", 0, "rank0.json"))
        return run.trace()

    @staticmethod
    def good() -> Measures:
        """The whole file; one kernel of the step before ran into the window."""
        return _kernels(lost=1).trace()


def _present(run: Measures) -> set[int]:
    return set(run.rows("ranks").ints("rank").tolist())


def _crawling(run: Measures) -> tuple[int, str]:
    """Time of a GPU in large collectives with missing ranks that crawl, and a clause on it."""
    calls = run.rows("collectives")
    large = ~calls.coded("device").being("cpu") & (calls.ints("size_bytes") >= _LARGE_BYTES)
    large &= calls.coded("op").where(SYNCHRONISING.__contains__) & (calls.ints("duration_ns") > 0)
    large &= calls.ints("group_size") > len(_present(run))
    calls = run.rows("collectives", np.flatnonzero(large))
    gb_s, time_ns = _bus_gb_s(calls), calls.ints("duration_ns")
    slow = (gb_s > 0) & (gb_s < _CRAWL_GB_S)
    if not slow.any():
        return 0, ""
    op, rank = calls.coded("op"), codes(calls.ints("rank")[slow])
    time = int(median(sums(rank, time_ns[slow], int(rank.max()) + 1)))
    together_gb_s = np.average(gb_s[slow], weights=time_ns[slow])
    return time, (
        f", and {ms(time)} in {op.names[np.bincount(op.codes[slow]).argmax()]} at "
        f"{together_gb_s:.2g} GB/s bus bandwidth, less than any link in a machine gives, "
        "are one or the other"
    )


def _bus_gb_s(calls: Rows) -> Float64:
    kind = codes(calls.coded("op"), calls.ints("group_size"))
    first = first_rows(kind)
    each = zip(
        calls.coded("op").take(first).decoded(),
        calls.ints("group_size")[first].tolist(),
        strict=True,
    )
    factor = np.array([bus_factor(str(op), ranks) for op, ranks in each], dtype=np.float64)
    gb_s: Float64 = calls.ints("size_bytes") * factor[kind] / calls.ints("duration_ns")
    return gb_s


def _shortened(message: str) -> str:
    line = " ".join(message.split())
    return shorten(line, _SAID, placeholder=" …")


def _kernels(lost: int) -> Tiny:
    run = Tiny()
    for i in range(50):
        launch = {"launch_ns": None} if i < lost else {}
        run.kernel(0, i * 10, 8, **launch)
    return run
