"""The first operation of a group takes far longer than those that follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct

from commtrace.arrays import (
    NULL,
    Bool,
    Float64,
    Int64,
    codes,
    first_rows,
    grouped,
    least,
    most,
    nth,
)
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import CannotLook, Evidence, Finding, enough
from commtrace.metrics.rank.rows_of import places_of_rank, ranks_of
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Coded, Column, Rows, Table
from commtrace.units import ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures

_MOSTLY = 0.8  # of what is saved
_PAIRS = 1 << 20  # more than any rank
_FAR_SLOWER = 20.0  # times: nothing but setting a group up makes all its ranks wait so long
_FIRST_SEQ = 1  # counters begin at 0 or at 1
_TIMES = Table(
    "times",
    "one operation of a known group, with all its sequence numbers, by its start",
    (
        *OPERATIONS.columns,
        Column("stream", "int64", "The stream of the first of its rows."),
        Column("start_ns", "int64", "Its first start, on the ranks' own clocks.", "ns"),
        Column("end_ns", "int64", "Its last end, on the ranks' own clocks.", "ns"),
        Column("is_message", "bool", "Whether it is a send with its recv."),
        Column("members", "category", "The group's ranks."),
        Column("time_ns", "float64", "The shortest call of a host, and the transfer.", "ns"),
        Column("first", "bool", "Whether it is the first of its group, or of its pair."),
    ),
)


class ColdStart(Rule, frozen=True):
    """The first operation of a group takes far longer than those that follow.

    What it detects
        The operation that a group's own counter calls its first, at least ``slower`` times
        the median of ``others`` or more later ones of the same kind and size, slower than
        any of them, and by at least ``min_step_share`` of the steps. A time here is the
        host's call on the rank where it was shortest, and the transfer behind it. Without
        counters, or without later ones of its kind, the first that is recorded of a group, in the
        first step and on all ranks, if it takes 20 times as long as these, or as larger operations
        of the same ranks.

    Why it costs time
        In the first operation the ranks find each other, connect, allocate buffers and load
        kernels; send and recv do it once more for each pair. It happens once, and a benchmark
        without warm-up measures little else.

    What to do
        Run one operation of each group (and pair) before what is measured, or pass
        ``device_id`` to init_process_group so that NCCL connects at once; reuse groups
        instead of making new ones. The statistics of one run are better without the first.

    Blind spots
        Without sequence numbers a window's first operation may be any: what is far slower than its
        like has low confidence. gloo numbers no sends and recvs. The time of new_group and
        init_process_group themselves is not counted: they are no operations. The first step may
        compile or allocate as well: that delays arrivals, which are not counted here, but also the
        host's call.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication", "launch-gap")
    paid_once: ClassVar[bool] = True

    slower: float = 2.0
    others: int = 3
    min_step_share: float = 0.01

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind of operation."""
        if not len(called := run.rows("collectives")):
            return
        numbered = bool((called.ints("seq") != NULL).any())
        if not (times := _times(run, numbered=numbered)).flags("first").any() and numbered:
            raise CannotLook("needs a group's first operation: all were before what is recorded")
        found = []
        first = times.flags("first")
        for rows in (its for its in _kinds(times) if first[its].any()):
            if its := self._cold(times, times.take(rows), numbered=numbered):
                gain = self._gain(run, its)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    found.append((len(its.later), (its, gain)))
        if not found and not numbered:
            raise CannotLook(
                "needs sequence numbers, which show a group's first operation: NCCL's Seq, or "
                "TORCH_FR_BUFFER_SIZE for gloo"
            )
        for one in enough(found, self.others, "later operation", "of the same kind"):
            yield self._finding(run, *one)

    def _cold(self, times: Rows, kind: Rows, *, numbered: bool) -> _Cold | None:
        """What is far slower than the later ones of its kind, or else than larger operations."""
        first, later = (kind.take(which) for which in (kind.flags("first"), ~kind.flags("first")))
        alike = len(later) >= self.others or len(larger := _larger(times, first)) < self.others
        later = later if alike else larger
        time, sure = later.floats("time_ns"), numbered and alike
        usual = max(median(time), 1.0) if len(later) else 0.0
        times_slower = self.slower if sure else max(self.slower, _FAR_SLOWER)
        least = max(times_slower * usual, time.max(initial=0))
        cold = first.take(first.floats("time_ns") > least)
        return _Cold(cold, later, usual, alike, sure) if len(cold) else None

    def _gain(self, run: Measures, its: _Cold) -> Saving:
        """What is saved if the first took as long as usual."""
        cold, later = its.cold, its.later
        more = cold.floats("time_ns") - its.usual_ns
        estimate = wall_ns(cold.ints("last_end_ns"), more)
        usually_ns = median(later.ints("transfer_ns")) if len(later) else np.inf
        less = cold.ints("transfer_ns") - usually_ns
        if less.sum() < _MOSTLY * more.sum():
            return Saving(estimate, why="knows nothing of the host's call, which took most of it")
        return of_transfers(run, cold, less, estimate, self.min_step_share)

    def _finding(self, run: Measures, its: _Cold, gain: Saving) -> Finding:
        cold, later, usual = its.cold, its.later, its.usual_ns
        op = cold.coded("op").at(0) or "operation"
        time = median(cold.floats("time_ns"))
        what = "pair" if cold.flags("is_message").any() else "group"
        groups = f"a {what}" if len(cold) == 1 else f"{len(cold)} {what}s"
        if len(cold) == 1 and what == "group":
            groups = spoken(run, str(cold.coded("communicator").at(0)))
        return self.finding(
            cold,
            summary=(
                f"the first {op} of {groups} takes {ms(time)}, {multiple(time / usual)} the "
                + (
                    f"usual {ms(usual)}"
                    if its.alike
                    else f"{ms(usual)} of others at least as large"
                )
            ),
            saving=gain,
            evidence=(
                Evidence("first by median of the later", time / usual, "x", self.slower),
                Evidence("slowest of the later", float(later.floats("time_ns").max()) / 1e6, "ms"),
                Evidence("later ones compared with", len(later), "operations", self.others),
            ),
            ruled_out=(
                "late ranks: the shortest of the ranks' calls counts, and transfer after the last",
                "an outlier: none of the later ones took as long",
            ),
            advice=(
                "warm the group up before measuring, keep it, and leave the first out of averages"
            ),
            confidence="low" if not its.sure else "medium" if len(cold) == 1 else "high",
        )

    @staticmethod
    def bad() -> Measures:
        """A first all_reduce of 50 ms, then of 1 ms."""
        return _run(first_us=50_000)

    @staticmethod
    def good() -> Measures:
        """The first takes a little longer than the others."""
        return _run(first_us=1_500)


class _Cold(Struct, frozen=True, eq=False):
    """First operations, and those that show how long they ought to take.

    ``alike``: the later ones are of their kind, not larger. ``sure`` if counters say, too, that
    they are the first.
    """

    cold: Rows
    later: Rows
    usual_ns: float
    alike: bool
    sure: bool


def _run(first_us: float) -> Measures:
    run = Tiny(ranks=2)
    for step in range(6):
        for rank in range(2):
            start = 0.0 if step == 0 else 60_000 + step * 1500
            took = first_us if step == 0 else 1000
            run.collective(rank, "all_reduce", start, took, size=1 << 20)
    return run.trace()


def _kinds(times: Rows) -> list[Int64]:
    """The rows of each operation, type and size among the same ranks."""
    op, dtype, members = (times.coded(name) for name in ("op", "dtype", "members"))
    return grouped(op, dtype, times.ints("size_bytes"), members.ordered())


def _larger(times: Rows, first: Rows) -> Rows:
    """Later collectives of the same ranks with at least as many bytes as any of these."""
    if not len(first) or first.flags("is_message").any():
        return times.take(np.empty(0, np.int64))
    members, least_bytes = first.coded("members").at(0) or "", int(first.ints("size_bytes").max())
    later = times.coded("members").being(members) & ~times.flags("first")
    large = (times.ints("size_bytes") >= max(least_bytes, 1)) & ~times.flags("is_message")
    return times.take(later & large)


def _in_first_step(run: Measures, its: Rows) -> Bool:
    """Which operations began in the first step that any is of, on all of their ranks."""
    step = run.rows("collectives").ints("step")
    known = step[step != NULL]
    first = int(known.min()) if known.size else NULL
    in_it = least(operation_of(run), step, len(its)) == first
    found: Bool = in_it & (its.ints("present") == its.ints("expected"))
    return found


def _times(run: Measures, *, numbered: bool) -> Rows:
    """The operations in the order in which they began, and which are the first of their group.

    Where they have no numbers, the first that are recorded, if that is in the first step.
    """
    its, of, rows = matched(run).operations, operation_of(run), run.rows("collectives")
    count, start_ns = len(its), rows.ints("start_ns")
    starts, ranks = (least(of, values, count) for values in (start_ns, rows.ints("rank")))
    host = np.full(count, np.inf)
    np.minimum.at(host, of, _host_ns(run))
    counted = np.bincount(of[rows.ints("seq") != NULL], minlength=count)
    may_be = np.ones(count, np.bool_) if numbered else _in_first_step(run, its)
    order = np.argsort(starts, kind="stable")
    known = counted == its.ints("present") if numbered else np.ones(count, np.bool_)
    at = order[(known & its.coded("communicator").known)[order]]
    its, peer = its.take(at), _first_peer(of, rows.ints("peer"), count)[at]
    group, is_message = its.coded("communicator"), peer != NULL
    # Collectives count apart from point-to-point, where each pair is new once.
    counter = codes(group, is_message)
    first_seq = least(counter, its.ints("seq"), counter.max(initial=-1) + 1)
    pair = np.where(is_message, ranks[at] * _PAIRS + peer, -1)
    first = may_be[at] & (first_seq[counter] <= _FIRST_SEQ) & (nth(codes(group, pair)) == 0)
    return _TIMES.rows(
        {
            **its.columns,
            "stream": rows.ints("stream")[first_rows(of)][at],
            "start_ns": starts[at],
            "end_ns": most(of, start_ns + rows.ints("duration_ns"), count)[at],
            "is_message": is_message,
            "members": _members(group),
            "time_ns": host[at] + its.ints("transfer_ns"),
            "first": first,
        }
    )


def _first_peer(of: Int64, peer: Int64, count: int) -> Int64:
    """The peer that the first row of each operation tells, of those that do."""
    found = np.full(count, NULL)
    known = np.flatnonzero(peer != NULL)[::-1]
    found[of[known]] = peer[known]
    return found


def _members(communicator: Coded) -> Coded:
    """The ranks of each, without what distinguishes groups of the same ranks."""
    ranks = Coded.of([name.partition("#")[0] for name in communicator.names])
    return Coded(ranks.codes[communicator.codes], ranks.names)


def _host_ns(run: Measures) -> Float64:
    """How long the call that launched each row kept the host; 0 where the trace lacks it."""
    launch_ns = run.rows("collectives").ints("launch_ns")
    host = np.zeros(launch_ns.size)
    for rank in ranks_of(run, "collectives"):
        calls = run.rows("ops", places_of_rank(run, "ops", rank))
        mine = np.flatnonzero(calls.coded("kind").being("communication"))
        if not mine.size:
            continue
        start, took = (calls.ints(name)[mine] for name in ("start_ns", "duration_ns"))
        order = np.argsort(start, kind="stable")
        start, took = start[order], took[order]
        at = places_of_rank(run, "collectives", rank)
        launch = np.maximum(launch_ns[at], 0)  # null is less
        near = np.searchsorted(start, launch, side="right") - 1
        start, took = start[near.clip(min=0)], took[near.clip(min=0)]
        host[at] = np.where((near >= 0) & (launch <= start + took), took, 0)
    return host
