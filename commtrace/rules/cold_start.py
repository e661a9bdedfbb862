"""The first operation of a group takes far longer than those that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from commtrace.arrays import NULL, Float64, codes, first_rows, integers, nth
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.rank.rows_of import columns_of
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.packed import columns_in
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.trace_tables import COLLECTIVES
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_KIND = ["op", "dtype", "size_bytes", "members"]
_MOSTLY = 0.8  # of what is saved
_NEVER = np.iinfo(np.int64).max
_PAIRS = 1 << 20  # more than any rank
_FIRST_SEQ = 1  # counters begin at 0 or at 1


class ColdStart(Rule, frozen=True):
    """The first operation of a group takes far longer than those that follow.

    What it detects
        The operation that a group's own counter calls its first, at least ``slower`` times
        the median of ``others`` or more later ones of the same kind and size, slower than
        any of them, and by at least ``min_step_share`` of the steps. A time here is the
        host's call on the rank where it was shortest, and the transfer behind it.

    Why it costs time
        In the first operation the ranks find each other, connect, allocate buffers and load
        kernels; send and recv do it once more for each pair. It happens once, and a benchmark
        without warm-up measures little else.

    What to do
        Run one operation of each group (and pair) before what is measured, or pass
        ``device_id`` to init_process_group so that NCCL connects at once; reuse groups
        instead of making new ones. The statistics of one run are better without the first.

    Blind spots
        Without sequence numbers a window's first operation may be any, and the rule is skipped;
        gloo numbers no sends and recvs. The time of new_group and init_process_group themselves is
        not counted: they are no operations. The first step may compile or allocate as well: that
        delays arrivals, which are not counted here, but also the host's call.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    slower: float = 2.0
    others: int = 3
    min_step_share: float = 0.01

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of operation."""
        if not len(run.collective_columns):
            return
        numbered = run.collective_columns["seq"].notna().any()
        if not numbered or not (times := _times(run))["first"].any():
            raise CannotLook(
                "needs sequence numbers, which show a group's first operation: NCCL's Seq, or "
                "TORCH_FR_BUFFER_SIZE for gloo"
            )
        found = []
        for _, kind in times.groupby(_KIND, observed=True, dropna=False):
            time, is_first = kind["time_ns"], kind["first"]
            usual = max(float(time[~is_first].median()), 1.0) if not is_first.all() else 0.0
            longest = float(time[~is_first].max()) if not is_first.all() else 0.0
            is_cold = is_first & (time > max(self.slower * usual, longest))
            if not is_cold.any():
                continue
            cold, later = kind[is_cold], kind[~is_first]
            gain = self._gain(run, cold, later, usual)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                found.append((len(later), (cold, later, usual, gain)))
        for one in enough(found, self.others, "later operation", "of the same kind"):
            yield self._finding(run, *one)

    def _gain(self, run: Measures, cold: pd.DataFrame, later: pd.DataFrame, usual: float) -> Saving:
        """What is saved if the first took as long as usual."""
        more = cold["time_ns"] - usual
        estimate = wall_ns(cold["last_end_ns"], more)
        less = cold["transfer_ns"] - later["transfer_ns"].median()
        if less.sum() < _MOSTLY * more.sum():
            return Saving(estimate, why="knows nothing of the host's call, which took most of it")
        return of_transfers(run, cold, less, estimate, self.min_step_share)

    def _finding(
        self, run: Measures, cold: pd.DataFrame, later: pd.DataFrame, usual: float, gain: Saving
    ) -> Finding:
        op = cold["op"].iloc[0] if cold["op"].notna().all() else "operation"
        time = float(cold["time_ns"].median())
        what = "pair" if cold["is_message"].any() else "group"
        groups = f"a {what}" if len(cold) == 1 else f"{len(cold)} {what}s"
        if len(cold) == 1 and what == "group" and isinstance(cold["communicator"].iloc[0], str):
            groups = spoken(run, cold["communicator"].iloc[0])
        return self.finding(
            cold,
            summary=(
                f"the first {op} of {groups} takes {ms(time)}, {time / usual:.3g}x the usual "
                f"{ms(usual)}"
            ),
            cost_ns=gain.cost_ns,
            cost_on_top_ns=gain.on_top_ns,
            replayed_step_ns=gain.replayed_step_ns,
            evidence=(
                Evidence("first by median of the later", time / usual, "x", self.slower),
                Evidence("slowest of the later", float(later["time_ns"].max()) / 1e6, "ms"),
                Evidence("later ones compared with", len(later), "operations", self.others),
                *gain.evidence,
            ),
            ruled_out=(
                "late ranks: the shortest of the ranks' calls counts, and transfer after the last",
                "an outlier: none of the later ones took as long",
            ),
            advice=(
                "warm the group up before measuring, keep it, and leave the first out of averages"
            ),
            confidence="medium" if len(cold) == 1 else "high",
        )

    @staticmethod
    def bad() -> Measures:
        """A first all_reduce of 50 ms, then of 1 ms."""
        return _run(first_us=50_000)

    @staticmethod
    def good() -> Measures:
        """The first takes a little longer than the others."""
        return _run(first_us=1_500)


def _run(first_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(6):
        for rank in range(2):
            start = 0.0 if step == 0 else 60_000 + step * 1500
            took = first_us if step == 0 else 1000
            run.collective(rank, "all_reduce", start, took, size=1 << 20)
    return run.trace()


def _times(run: Measures) -> pd.DataFrame:
    """The operations in the order in which they began, and which are the first of their group."""
    operations, of = matched(run).operations, operation_of(run)
    its: Any = columns_in(operations)
    rows: Any = columns_of(run, COLLECTIVES)
    starts, ends, ranks = (np.full(len(operations), at) for at in (_NEVER, NULL, _NEVER))
    host = np.full(len(operations), np.inf)
    np.minimum.at(starts, of, rows["start_ns"])
    np.maximum.at(ends, of, rows["start_ns"] + rows["duration_ns"])
    np.minimum.at(ranks, of, rows["rank"])
    np.minimum.at(host, of, _host_ns(run))
    peer = np.full(len(operations), NULL)
    told = np.flatnonzero(rows["peer"] != NULL)[::-1]
    peer[of[told]] = rows["peer"][told]
    counted = np.bincount(of[rows["seq"] != NULL], minlength=len(operations))
    order = np.argsort(starts, kind="stable")
    at = order[((counted == its["present"]) & (its["communicator"].codes >= 0))[order]]
    group, peer, is_message = its["communicator"].codes[at], peer[at], peer[at] != NULL
    # Collectives count apart from point-to-point, where each pair is new once.
    counter = codes(group, is_message)
    least = np.full(counter.max(initial=-1) + 1, _NEVER)
    np.minimum.at(least, counter, its["seq"][at])
    pair = np.where(is_message, ranks[at] * _PAIRS + peer, -1)
    names = np.asarray([name.partition("#")[0] for name in its["communicator"].names], object)
    columns = {
        **{one.name: operations[one.name].array[at] for one in OPERATIONS.columns},
        "stream": rows["stream"][first_rows(of)][at],
        "start_ns": starts[at],
        "end_ns": ends[at],
        "is_message": is_message,
        "members": names[group],
        "time_ns": host[at] + its["transfer_ns"][at],
        "first": (least[counter] <= _FIRST_SEQ) & (nth(codes(group, pair)) == 0),
    }
    return pd.DataFrame(columns, copy=False)


def _host_ns(run: Measures) -> Float64:
    """How long the call that launched each row kept the host; 0 where the trace lacks it."""
    calls = run.ops[run.ops["kind"] == "communication"]
    launch_ns = integers(run.collective_columns["launch_ns"])
    host = np.zeros(launch_ns.size)
    of_rank = calls.groupby("rank").indices
    places: Any = run.collective_columns[["rank"]].groupby("rank").indices
    for rank, at in places.items():
        mine = calls.iloc[of_rank.get(rank, [])].sort_values("start_ns", kind="stable")
        if mine.empty:
            continue
        launch = np.maximum(launch_ns[at], 0)  # null is less
        near = np.searchsorted(mine["start_ns"].to_numpy(), launch, side="right") - 1
        start, took = (
            mine[name].to_numpy()[near.clip(min=0)] for name in ("start_ns", "duration_ns")
        )
        host[at] = np.where((near >= 0) & (launch <= start + took), took, 0)
    return host
