"""Many small operations in a row, whose time is latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from commtrace.causal.cores import full_cores
from commtrace.causal.edits import joined
from commtrace.causal.graph import Lags
from commtrace.causal.run_graph import run_graph
from commtrace.causal.savings import Edit, saving
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.expect import Model, fit, nccl_latency_ns
from commtrace.metrics.run.bandwidth import served, streams, typical_ns
from commtrace.metrics.run.joined_rows import several_ranks
from commtrace.metrics.run.whole import worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SMALL_BYTES = 131_072  # moved in no time by any link
_PAUSE_NS = 1_000_000  # in which much else may run, however long a latency is
_WITHIN_GB_S, _BETWEEN_GB_S = 1.0, 0.1  # slow links, so that latency is not overstated


class _Latency(Struct, frozen=True):
    """One operation's latency, how it is known, and of how large ones."""

    ns: float
    origin: str
    most_bytes: int


class LatencyBound(Rule, frozen=True):
    """Many small operations follow each other, and most of their time is latency.

    What it detects
        ``min_count`` operations or more of one kind, of at most ``max_bytes`` each, whose latency
        is more than ``min_latency_share`` of what their size takes in the median, in rows without
        a pause: on every rank the next begins within one latency, at most a millisecond, of the
        last one's end, so that little was computed in between, and they could have been one.
        Latency is fitted from this trace to the medians of its sizes, where these differ enough and
        the fit is off by at most ``max_residual`` in the messages' mean, else it is that of NCCL's
        own tuning constants; without NCCL, of collectives up to 131 kB, what moving them at 1 GB/s
        within a host, at 0.1 GB/s between hosts, leaves of their median.
        The potential saving, a row's time from first to last less that of the operations it could
        have been, has to be worth ``min_step_share`` of the step.

    Why it costs time
        Every operation pays for its launch and for every hop of its ring or tree, however
        few bytes it has.

    What to do
        Send them together: flatten the tensors into one, use the coalesced calls or a
        coalescing manager, raise DDP's ``bucket_cap_mb``.

    Blind spots
        An operation that needs the result of the one before cannot join it; with nothing
        computed in between that is rare, but not measured here. A row becomes one operation for
        every ``bucket_bytes``. Where gloo's threads wait for the CPU's cores that looks like
        latency, too: the finding says that it is not sure.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_count: int = 10
    min_latency_share: float = 0.5
    max_bytes: int = 1_000_000
    max_residual: float = 0.3
    min_step_share: float = 0.05
    bucket_bytes: int = 25_000_000

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per operation, group and type."""
        several_ranks(run)
        known = served(run)
        known = known[known["exact"]]
        groups = known.groupby("communicator", observed=True, dropna=False)
        known = known.assign(place=groups.cumcount(), typical_ns=typical_ns(known))
        looked = False
        found: list[tuple[int, Finding]] = []
        for _, some in known.groupby(["communicator", "op", "dtype"], observed=True, dropna=False):
            latency = self._latency(some, run)
            if latency is not None:
                looked = True
                found += self._among(some, latency, run)
        yield from enough(found, self.min_count, "small operation", "in rows")
        if not looked:
            raise CannotLook(
                "needs a latency: sizes vary too little, or times too little with them, to fit "
                "one; without a fit only NCCL's, and that of small operations, is known"
            )

    def _among(
        self, some: pd.DataFrame, known: _Latency, run: Measures
    ) -> Iterator[tuple[int, Finding]]:
        """A finding of the group, with how many operations it is about."""
        latency = known.ns
        small = some[
            (latency > self.min_latency_share * some["typical_ns"])
            & (some["size_bytes"] <= known.most_bytes)
        ]
        row = _rows(small, latency)
        if np.unique(row).size == row.size:
            return
        of_row = _measured(small, row, latency)
        left = (1 + of_row["bytes"] // self.bucket_bytes).clip(upper=of_row["count"])
        fewer = int((of_row["count"] - left).sum())
        saved = of_row["took_ns"] - left * latency - of_row["moving_ns"]
        estimate = float(saved[left < of_row["count"]].clip(lower=0).sum())
        in_rows = small[of_row["count"].to_numpy()[row] > 1]
        if not worth_reporting(estimate, run, self.min_step_share):
            return
        in_one = _joined(run, small, row, left * latency + of_row["moving_ns"])
        gain = saving(run, in_one, estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        share = min(latency / float(in_rows["typical_ns"].median()), 1.0)
        full = full_cores(run)
        unsure = f" (not sure: {full}, for which each waits, too)" if full else ""
        finding = self.finding(
            in_rows,
            summary=(
                f"{counted(len(in_rows), in_rows['op'].iloc[0])} of "
                f"{mb(in_rows['size_bytes'].median())} each follow one another, and "
                f"{percent(share, 1)} of their time is latency ({ms(latency)} each): "
                f"{len(in_rows) - fewer} would do{unsure}"
            ),
            streams=streams(in_rows, run),
            cost_ns=gain.cost_ns,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            evidence=(
                Evidence("share of latency", 100 * share, "%", 100 * self.min_latency_share),
                Evidence(f"latency, {known.origin}", latency / 1e3, "µs"),
                Evidence("operations that could join another", fewer, "operations"),
                *gain.evidence,
            ),
            ruled_out=("order: nothing ran long enough in between to need the result",),
            advice=_advice(run, str(in_rows["op"].iloc[0])),
            confidence="low" if full else "medium",
        )
        yield len(in_rows), finding

    def _latency(self, some: pd.DataFrame, run: Measures) -> _Latency | None:
        """One operation's latency; None if unknown."""
        if model := _fitted(some, self.max_residual):
            return _Latency(model.latency_ns, "fitted from this trace", self.max_bytes)
        if some["ranks"].isna().any():
            return None
        op, ranks = str(some["op"].iloc[0]), int(some["ranks"].iloc[0])
        nodes = min(max(run.ranks["host"].nunique(), 1), ranks)
        if (run.groups["backend"] == "nccl").any():
            ns, origin = nccl_latency_ns(op, ranks, nodes=nodes), "by NCCL's tuning constants"
            return None if ns is None else _Latency(ns, origin, self.max_bytes)
        # A message that was posted early takes as long as the other end lets it.
        return None if op in POINT_TO_POINT else _beyond_moving(some, nodes)

    @staticmethod
    def bad() -> Measures:
        """After a few large ones, 60 all_reduces of 8 kB one after the other."""
        return _all_reduces(pause_us=2)

    @staticmethod
    def good() -> Measures:
        """The same with 200 µs in between."""
        return _all_reduces(pause_us=200)


def _advice(run: Measures, op: str) -> str:
    labels = run.steps["label"].dropna().unique()
    if op == "broadcast" and any("ZeroRedundancyOptimizer.step" in str(label) for label in labels):
        return (
            "construct ZeroRedundancyOptimizer with parameters_as_bucket_view=True: it sends "
            "buckets in place of parameters"
        )
    return (
        "send them together: flatten the tensors, use a coalescing manager, or raise DDP's "
        "bucket_cap_mb"
    )


def _fitted(some: pd.DataFrame, max_residual: float) -> Model | None:
    """The model of what each size takes in the median, however much one message varies.

    None if messages' medians are off by more than that in the mean.
    """
    of_size = some.groupby("size_bytes")["transfer_ns"].agg(["median", "size"])
    size, median = of_size.index.to_numpy(np.float64), of_size["median"].to_numpy()
    model = fit(size, median)
    if model is None:
        return None
    off = np.abs(median / [model.time_ns(one) for one in size] - 1)
    return model if np.average(off, weights=of_size["size"]) <= max_residual else None


def _beyond_moving(some: pd.DataFrame, nodes: int) -> _Latency | None:
    """What small messages of some size take least, beyond moving at a slow link's bandwidth."""
    gb_s = _WITHIN_GB_S if nodes == 1 else _BETWEEN_GB_S
    small = some[some["size_bytes"] <= _SMALL_BYTES]
    beyond = (small["typical_ns"] - small["size_bytes"] * small["factor"] / gb_s).min()
    origin = f"what is left of it at {gb_s:g} GB/s"
    return _Latency(float(beyond), origin, _SMALL_BYTES) if beyond > 0 else None


def _rows(small: pd.DataFrame, latency: float) -> npt.NDArray[np.intp]:
    """Numbers the rows of operations without a pause or another one in between."""
    pause = small["last_arrival_ns"].to_numpy()[1:] - small["last_end_ns"].to_numpy()[:-1]
    begins = (np.diff(small["place"].to_numpy()) > 1) | (pause > min(latency, _PAUSE_NS))
    return np.concatenate(([0], np.cumsum(begins)))[: len(small)]


def _joined(
    run: Measures, small: pd.DataFrame, row: npt.NDArray[np.intp], time_ns: pd.Series[float]
) -> Edit:
    """Each row as its last operation, which takes the time that all need together."""
    first = np.concatenate(([True], row[1:] != row[:-1]))
    last = np.append(first[1:], True)
    of = small["operation"].to_numpy()
    time = pd.Series(np.where(first & last, 0.0, time_ns.to_numpy()[row]), of)

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        times = np.asarray(time.reindex(operation, fill_value=0.0), dtype=np.float64)
        later, gone = (np.isin(operation, of[~flags]) for flags in (first, last))
        return joined(run, later, gone, times, lag_ns)

    return edit


def _measured(small: pd.DataFrame, row: npt.NDArray[np.intp], latency: float) -> pd.DataFrame:
    """Of each row: its operations, bytes, time once all were there, and that beyond latency."""
    moving = (small["typical_ns"] - latency).clip(lower=0)
    of_row = (
        small.assign(moving_ns=moving)
        .groupby(row)
        .agg(
            count=("size_bytes", "size"),
            bytes=("size_bytes", "sum"),
            start_ns=("last_arrival_ns", "min"),
            end_ns=("last_end_ns", "max"),
            moving_ns=("moving_ns", "sum"),
        )
    )
    # Pauses in a row are what the host takes to call the next: one call has none.
    return of_row.assign(took_ns=(of_row["end_ns"] - of_row["start_ns"]).astype("float64"))


def _all_reduces(pause_us: float) -> Measures:
    run = Tiny(2)
    now = 0.0
    for size, took in [(4_000_000, 60), (16_000_000, 180), (64_000_000, 660)] + [(8_000, 20)] * 60:
        for rank in range(2):
            run.collective(rank, "all_reduce", now, took, size=size)
        now += took + pause_us
    return run.trace()
