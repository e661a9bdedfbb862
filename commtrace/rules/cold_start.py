"""The first operation of a group takes far longer than those that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from commtrace.arrays import integers
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_KIND = ["op", "dtype", "size_bytes", "members"]
_MOSTLY = 0.8  # of what is saved
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
        return of_transfers(run, cold.reset_index(), less, estimate, self.min_step_share)

    def _finding(
        self, run: Measures, cold: pd.DataFrame, later: pd.DataFrame, usual: float, gain: Saving
    ) -> Finding:
        op = cold["op"].iloc[0] if cold["op"].notna().all() else "operation"
        time = float(cold["time_ns"].median())
        what = "group" if cold["peer"].isna().all() else "pair"
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
    """Operations of groups that count, with the time that each took on host and device."""
    found = matched(run)
    rows = run.collective_columns
    calls = pd.DataFrame(
        {
            "host_ns": _host_ns(run),
            "end_ns": (rows["start_ns"] + rows["duration_ns"]).array,
            **{name: rows[name].array for name in ("start_ns", "stream", "rank", "peer", "seq")},
        }
    ).groupby(found.matches["operation"].to_numpy())
    each = pd.DataFrame(
        {
            **calls[["host_ns", "start_ns", "rank"]].min(),
            **calls[["stream", "peer"]].first(),
            "end_ns": calls["end_ns"].max(),
            "counted": calls["seq"].count(),
        }
    )
    times = found.operations.set_index("operation").join(each).sort_values("start_ns")
    times = times[(times["counted"] == times["present"]) & times["communicator"].notna()]
    # As objects: pandas would make each as long as the longest, and that lists all ranks.
    group = times["communicator"].astype(object)
    times = times.assign(
        group=group,
        members=group.str.split("#").str[0],
        pair=times["rank"].where(times["peer"].notna(), -1) * _PAIRS + times["peer"].fillna(-1),
        time_ns=times["host_ns"] + times["transfer_ns"],
    )
    # Collectives count apart from point-to-point, where each pair is new once.
    counter = times.groupby(["group", times["peer"].notna()])["seq"]
    from_the_start = counter.transform("min") <= _FIRST_SEQ
    return times.assign(first=from_the_start & (times.groupby(["group", "pair"]).cumcount() == 0))


def _host_ns(run: Measures) -> pd.Series[float]:
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
    return pd.Series(host)
