"""Run: what a notebook holds. A thin facade over what is below."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from commtrace import config
from commtrace.analysis import Analysis
from commtrace.diagnosis import CannotLook, Diagnosis, Note
from commtrace.errors import UsageError
from commtrace.measures import Measures
from commtrace.units import counted

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd

    from commtrace.metrics.rank.exposure import By
    from commtrace.metrics.rank.rank_summary import RankSummary
    from commtrace.plots.of_run import Plot
    from commtrace.reports.whatif import Replayed
    from commtrace.rules import Thresholds
    from commtrace.table import Rows

__all__ = ["Run", "check_rules", "load"]

_T = TypeVar("_T")

# The measures and the pictures are imported where they are used: the processes that read the
# files start before, and pandas and matplotlib are for who wants a DataFrame or a picture.


def load(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    executor: Executor | None = None,
    cache: bool = True,
    read_bytes: Callable[[int, int], object] | None = None,
) -> Run:
    """Read traces of torch.profiler: files, folders or glob patterns, as one run.

    ``workers`` is the number of processes that read, by default one per core;
    ``progress`` is called with the files read and the files there are, ``read_bytes`` with
    their bytes on disk, both before any is read and after each. They are read on an ``executor``
    instead, if one is given, as Dask's ``client.get_executor()``: on its machines the paths have
    to be the same. What was read before is taken from the user's ``cache``, as
    long as it is the same (``commtrace cache`` shows where that is).

    Raises TraceError, which names the file, where nothing can be analysed. What could be
    read in part is, and ``Run.notes`` says what could not.
    """
    from commtrace.rank_measures import measured
    from commtrace.reader import read

    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    names = [os.fspath(path) for path in given]
    found = read(
        names,
        workers=workers,
        progress=progress,
        executor=executor,
        cached=cache,
        measured=measured,
        read_bytes=read_bytes,
        meanwhile=_import_rules,
    )
    return Run(found, name=", ".join(names), paths=tuple(names))


def _import_rules() -> None:
    import_module("commtrace.rules")  # which the processes that read do without


def check_rules(select: Collection[str], ignore: Collection[str], thresholds: Thresholds) -> None:
    """Raise UsageError for a rule or threshold that there is not, before traces are read."""
    # Where none is named the rules can wait: they take a while to import.
    if select or ignore or thresholds or config.rule_thresholds()[1]:
        from commtrace import rules

        rules.check(select, ignore, thresholds)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run: its tables, described in ``commtrace.trace_tables``, and what they tell.

    Times are integer nanoseconds, sizes bytes, bandwidth GB/s (1e9 bytes). Do not change
    the tables in place.
    """

    measures: Measures
    name: str
    paths: tuple[str, ...] = ()

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per GPU kernel: ``trace_tables.KERNELS``."""
        return self.measures.kernels

    @property
    def copies(self) -> pd.DataFrame:
        """One row per copy or memory fill: ``trace_tables.COPIES``."""
        return self.measures.copies

    @property
    def collectives(self) -> pd.DataFrame:
        """One row per operation and rank: ``trace_tables.COLLECTIVES``."""
        return self.measures.collectives

    @property
    def ops(self) -> pd.DataFrame:
        """One row per outermost CPU operator: ``trace_tables.OPS``."""
        return self.measures.ops

    @property
    def steps(self) -> pd.DataFrame:
        """One row per profiler step and labelled range: ``trace_tables.STEPS``."""
        return self.measures.steps

    @property
    def groups(self) -> pd.DataFrame:
        """One row per process group and rank: ``trace_tables.GROUPS``."""
        return self.measures.groups

    @property
    def ranks(self) -> pd.DataFrame:
        """One row per trace file: ``trace_tables.RANKS``."""
        return self.measures.ranks

    @property
    def operations(self) -> pd.DataFrame:
        """One row per operation, on all its ranks: ``metrics.run.waits.OPERATIONS``."""
        from commtrace.metrics.run.waits import operations

        return operations(self.measures).frame()

    @property
    def waits(self) -> pd.DataFrame:
        """One row per row of ``collectives``, in its order: ``metrics.run.wait_rows.WAIT_ROWS``.

        ``run.waits.groupby(["rank", "step"])["wait_ns"].sum()`` is waiting over time.
        """
        from commtrace.metrics.run.wait_rows import wait_rows

        return wait_rows(self.measures).frame()

    @property
    def clock(self) -> pd.DataFrame:
        """One row per rank, how far its clock is off: ``matching.CLOCK``."""
        from commtrace.metrics.run.waits import matched

        return matched(self.measures).clock.frame()

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was wrong with the files, and what had to be assumed."""
        return self.measures.notes

    @property
    def manifest(self) -> Mapping[str, Any] | None:
        """What ``commtrace record`` wrote beside the traces; None for anybody else's."""
        return self.measures.manifest

    @property
    def plot(self) -> Plot:
        """Pictures: ``run.plot.timeline()`` and the others of ``plots.of_run.NAMES``."""
        from commtrace.plots.of_run import Plot

        return Plot(self.measures)

    def overlap(self, by: Literal["device", "stream", "step"] = "device") -> pd.DataFrame:
        """What ran at the same time.

        By ``device`` or ``step``: compute, communication (overlapped and exposed), copies
        and idle time of each device, in all (``metrics.rank.devices.DEVICES``) or in each step
        (``DEVICE_STEPS``). By ``stream``: the time that both streams of a pair were busy
        (``metrics.rank.streams.STREAM_OVERLAP``).
        """
        from commtrace.metrics.rank.devices import devices
        from commtrace.metrics.rank.streams import stream_overlap

        measures: dict[str, Callable[[Measures], Rows]] = {
            "device": devices,
            "stream": stream_overlap,
            "step": partial(devices, by_step=True),
        }
        if by not in measures:
            raise UsageError(f"overlap(by={by!r}): choose one of {', '.join(map(repr, measures))}")
        return measures[by](self.measures).frame()

    def bandwidth(self) -> pd.DataFrame:
        """Cost, algbw and busbw per operation, group, type and size.

        The columns are those of ``metrics.run.collectives.COLLECTIVES``, costliest first.
        """
        from commtrace.metrics.run.collectives import collectives

        return collectives(self.measures).frame()

    def skew(self) -> pd.DataFrame:
        """How often each rank was last of its group, its waiting, and what it caused.

        The columns are those of ``metrics.run.ranks.ARRIVALS``.
        """
        from commtrace.metrics.run.ranks import arrivals

        return arrivals(self.measures).frame()

    def streams(self) -> pd.DataFrame:
        """What each stream did: ``metrics.rank.streams.STREAMS``."""
        from commtrace.metrics.rank.streams import streams

        return streams(self.measures).frame()

    def ranges(self) -> pd.DataFrame:
        """What each labelled range (``record_function``) cost: ``metrics.run.ranges.RANGES``."""
        from commtrace.metrics.run.ranges import ranges

        return ranges(self.measures).frame()

    def exposure(self, by: By = "group") -> pd.DataFrame:
        """To which ``group``, ``op``, ``step`` or ``phase`` exposed communication belongs.

        The columns are those of ``metrics.rank.exposure.EXPOSURE_BY_GROUP`` and its like.
        """
        from commtrace.metrics.rank.exposure import By, exposure

        if by not in (ways := get_args(By)):
            raise UsageError(f"exposure(by={by!r}): choose one of {', '.join(map(repr, ways))}")
        return exposure(self.measures, by=by).frame()

    def rank(self, rank: int) -> RankSummary:
        """What one rank tells by itself: ``metrics.rank.rank_summary.RankSummary``.

        Raises UsageError where there is no trace of it.
        """
        from commtrace.metrics.rank.rank_summary import rank_summary

        try:
            return rank_summary(self.measures, rank)
        except KeyError:
            here = ", ".join(map(str, self.ranks["rank"]))
            raise UsageError(f"there is no trace of rank {rank}; there are {here}") from None

    def queueing(self) -> pd.DataFrame:
        """How long operations waited for their start: ``metrics.rank.queueing.QUEUEING``."""
        from commtrace.metrics.rank.queueing import queueing

        return queueing(self.measures).frame()

    def step_times(self) -> pd.DataFrame:
        """Where each rank's steps went, critical path included: ``causal.steps.STEP_TIMES``."""
        from commtrace.causal.steps import step_times_by_rank

        return step_times_by_rank(self.measures).frame()

    def critical_path(self) -> pd.DataFrame:
        """What each step's time went into, on which rank: ``causal.critical_path.CRITICAL_PATH``.

        The times of a step sum to it. Raises UsageError where the run cannot be replayed.
        """
        from commtrace.causal.critical_path import critical_path

        return self._replayed(lambda: critical_path(self.measures)).frame()

    def whatif(self, *edits: str) -> pd.DataFrame:
        """What each edit saves, on top of those before it and alone: ``causal.whatif.EDITED``.

        ``run.whatif("rank=1:typical", "even")``; ``causal.whatif.EDITS`` lists all. Raises
        UsageError for an edit that there is not, and where the run cannot be replayed.
        """
        from commtrace.causal.whatif import edited

        return self._replayed(lambda: edited(self.measures, edits)).frame()

    def replay(self, *edits: str) -> pd.DataFrame:
        """Every step as measured and after each edit: ``causal.whatif.REPLAYED_STEPS``.

        Raises as ``whatif`` does.
        """
        from commtrace.causal.whatif import replayed_steps

        return self._replayed(lambda: replayed_steps(self.measures, edits)).frame()

    def slowdown(self) -> pd.DataFrame:
        """How much slower uneven work makes the run, by rank, host and operation.

        The columns are those of ``causal.efficiency.SLOWDOWN``; no rows where the run cannot be
        replayed.
        """
        from commtrace.causal.efficiency import slowdown

        return slowdown(self.measures).frame()

    def efficiency(self) -> pd.DataFrame:
        """The POP efficiencies, one row: ``causal.efficiency.EFFICIENCY``.

        No row where the run cannot be replayed.
        """
        from commtrace.causal.efficiency import efficiency

        return efficiency(self.measures).frame()

    def diagnose(
        self,
        *,
        select: Collection[str] = (),
        ignore: Collection[str] = (),
        thresholds: Thresholds | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Diagnosis:
        """What is wrong: findings, costliest first, symptoms after their cause.

        By all rules or the selected ones. ``thresholds`` are {rule: {field: value}}, over
        those of the configuration (see ``config``). ``progress`` is called with the rules asked
        and the rules there are, before the first and after each. Raises UsageError for what is
        unknown.
        """
        from commtrace import rules

        merged = rules.thresholds(thresholds or {})
        return rules.diagnose(
            self.measures, select=select, ignore=ignore, thresholds=merged, progress=progress
        )

    def analysis(
        self,
        *,
        select: Collection[str] = (),
        ignore: Collection[str] = (),
        thresholds: Thresholds | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> Analysis:
        """The run's measures and its diagnosis, as of ``diagnose``: what a report shows."""
        from commtrace.metrics.rank.hosts import assumed_hosts
        from commtrace.metrics.run.question import question
        from commtrace.metrics.run.sizes import unsized
        from commtrace.metrics.run.summary import summary
        from commtrace.metrics.run.unrecorded_steps import slowed
        from commtrace.metrics.run.unrecorded_work import unrecorded_work
        from commtrace.metrics.run.waits import unmatched
        from commtrace.metrics.run.whole import steps_without_work
        from commtrace.rules import verdict

        diagnosis = self.diagnose(
            select=select, ignore=ignore, thresholds=thresholds, progress=progress
        )
        run = self.measures
        notes = (
            *(*self.notes, *unrecorded_work(run), *unsized(run)),
            *(*assumed_hosts(run), *unmatched(run), *steps_without_work(run), *slowed(run)),
        )
        return Analysis(
            run=summary(run, self.name),
            question=question(run),
            notes=notes + diagnosis.notes,
            measures=run,
            verdict=verdict(run, diagnosis),
            arguments=(
                *(self.paths or (self.name,)),
                *(part for rule in select for part in ("--select", rule)),
                *(part for rule in ignore for part in ("--ignore", rule)),
                *(
                    part
                    for rule, fields in (thresholds or {}).items()
                    for field, value in fields.items()
                    for part in ("--threshold", f"{rule}.{field}={value}")
                ),
            ),
        )

    def replayed(self, edits: Sequence[str]) -> Replayed:
        """The run, and what edits of it save: what ``commtrace whatif`` shows.

        Raises as ``whatif`` does.
        """
        from commtrace.causal.whatif import whatif
        from commtrace.metrics.run.summary import summary
        from commtrace.reports.whatif import Replayed

        answer = self._replayed(lambda: whatif(self.measures, edits))
        return Replayed(summary(self.measures, self.name), self.measures, answer)

    def _replayed(self, answer: Callable[[], _T]) -> _T:
        try:
            return answer()
        except CannotLook as reason:
            raise UsageError(f"{self.name}: cannot be replayed: {reason}") from None

    def to_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write the run's tables into a folder, each as ``NAME.parquet``.

        Those of the trace (``trace_tables.TABLES``), ``operations``, ``waits`` and ``clock``.
        Raises UsageError without pyarrow, and where the folder cannot be written.
        """
        if find_spec("pyarrow") is None:
            raise UsageError("pyarrow is not installed: pip install 'commtrace[parquet]'")
        from commtrace.trace_tables import TABLES

        tables = {table.name: getattr(self.measures, table.name) for table in TABLES}
        tables |= {"operations": self.operations, "waits": self.waits, "clock": self.clock}
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for name, table in tables.items():
                table.to_parquet(Path(folder) / f"{name}.parquet")
        except OSError as error:
            raise UsageError(
                f"{folder}: cannot be written ({error.strerror}): give another folder"
            ) from None

    def hta(self) -> Any:
        """Holistic Trace Analysis on the same files: its ``TraceAnalysis``.

        Its rounding of times to microseconds is turned off. Raises UsageError without HTA.
        """
        os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")
        if find_spec("hta") is None:
            raise UsageError("HTA is not installed: pip install traceinsight 'pandas<3'")
        from hta.trace_analysis import TraceAnalysis

        files = zip(self.ranks["rank"], self.ranks["file"], strict=True)
        return TraceAnalysis({int(rank): str(Path(file).resolve()) for rank, file in files})

    def __repr__(self) -> str:
        from commtrace.metrics.run.summary import summary
        from commtrace.units import duration

        what = summary(self.measures, self.name)
        events = int(self.ranks["events"].sum())
        return (
            f"<Run {self.name!r}: {counted(len(what.ranks), 'rank')}, {counted(events, 'event')}, "
            f"{duration(what.span_ns)}>"
        )

    def _repr_html_(self) -> str:
        return self._html

    @cached_property
    def _html(self) -> str:
        from commtrace.reports import notebook

        return notebook.render(self.analysis())
