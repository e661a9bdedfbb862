"""The operation that ran is not the one that was called, and moves more bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Float64, Int64, codes, grouped
from commtrace.causal.savings import Saving, of_transfers
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import wall_ns, worth_reporting
from commtrace.quantiles import median, quantiles
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Rows, joined
from commtrace.units import counted, ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures

_FASTEST_PERCENT = 10  # of the operations of one size: the others waited for something else, too


class EmulatedOperation(Rule, frozen=True):
    """The operation that ran is not the one that was called, and moves more bytes.

    What it detects
        Operations that the backend carries out as another, in which every rank moves more bytes,
        where the difference is at least ``min_step_share`` of the steps. gloo runs a reduce_scatter
        as a full all_reduce and throws away all but one part.

    Why it costs time
        An all_reduce moves twice the bytes of a reduce_scatter, and the whole result has
        to be kept somewhere until the part is copied out.

    What to do
        Use a backend that has the operation (NCCL on GPUs), or call what runs anyway if its result
        can be used: on CPUs that costs the same, and spares gathering it later. The potential
        saving is the share of the bytes that a native operation would not move, of the time that
        they take: at most that of the fastest of their size, as the rest is waiting for cores or
        the network.

    Blind spots
        Needs both names in the trace: of the call, and of what ran. A native operation's time is
        computed from its bytes at the same bandwidth, not measured. Where all operations of a size
        had to wait, so did the fastest.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per call and what ran for it."""
        for row in _emulated(run):
            its = run.rows("collectives", row)
            op, executed = (str(its.coded(name).at(0)) for name in ("op", "executed"))
            n = int(its.ints("group_size")[0])
            native, moved = bus_factor(op, n), bus_factor(executed, n)
            if native and moved and moved > native:
                ran = _operations(run, row)
                times = ran.ints("transfer_ns")
                less = _moving_ns(ran) * (1 - native / moved)
                estimate = wall_ns(ran.ints("last_end_ns"), less)
                gain = of_transfers(run, ran, less, estimate, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    yield self._finding(its, times, times - less, moved / native, gain)

    def _finding(
        self, rows: Rows, times: Int64, natively: Float64, excess: float, gain: Saving
    ) -> Finding:
        op, executed = (rows.coded(name).at(0) for name in ("op", "executed"))
        time = median(times)
        return self.finding(
            rows,
            summary=(
                f"{op} runs as a full {executed}: {multiple(excess)} the bytes, in "
                f"{counted(len(times), 'operation')} of {ms(time)}"
            ),
            saving=gain,
            evidence=(
                Evidence("bytes moved by those of a native operation", excess, "x", 1.0),
                Evidence(f"time, median of {len(times)}", time / 1e6, "ms"),
                Evidence("a native one, by its bytes", median(natively) / 1e6, "ms"),
            ),
            ruled_out=(f"a slow {op}: the trace shows {executed} running under the call",),
            advice=_advice(rows, str(op), str(executed)),
            confidence="high",
        )

    @staticmethod
    def bad() -> Measures:
        """gloo: a reduce_scatter under which an all_reduce runs."""
        return _gloo("all_reduce")

    @staticmethod
    def good() -> Measures:
        """One that runs as itself."""
        return _gloo("reduce_scatter")


def _advice(rows: Rows, op: str, executed: str) -> str:
    if rows.coded("device").being("cpu").all():  # for which no backend that torch comes with has it
        return (
            f"call {executed} where its whole result is of use, which costs the same and spares "
            "gathering it later; else send fewer bytes, or less often"
        )
    return f"use a backend that has {op}, or call {executed} where its whole result is of use"


def _gloo(executed: str) -> Measures:
    run = Tiny(ranks=2, backend="gloo")
    for step in range(5):
        for rank in range(2):
            run.collective(
                rank, "reduce_scatter", step * 1000, 800, size=1 << 20, executed=executed
            )
    return run.trace()


def _emulated(run: Measures) -> list[Int64]:
    """The rows of ``collectives`` that ran as another operation, those of each kind."""
    its = run.rows("collectives")
    op, executed, size = its.coded("op"), its.coded("executed"), its.ints("group_size")
    both = op.known & executed.known
    if len(its) and not both.any():
        raise CannotLook("needs both what was called and what ran")
    called, done = np.split(joined([op, executed]).codes, 2)
    rows = np.flatnonzero(both & (called != done) & (size != NULL))
    return [rows[kind] for kind in grouped(op.take(rows), executed.take(rows), size[rows])]


def _operations(run: Measures, rows: Int64) -> Rows:
    """The operations of these rows, of which each rank has its own."""
    found = matched(run)
    number = found.matches.ints("operation")[rows]
    return found.operations.take(np.isin(found.operations.ints("operation"), number))


def _moving_ns(ran: Rows) -> Float64:
    """Of each operation the time that its bytes take, at most what the fastest of its size took."""
    times, size = ran.ints("transfer_ns"), codes(ran.ints("size_bytes"))
    fastest = quantiles(size, times, _FASTEST_PERCENT, int(size.max()) + 1)
    return np.minimum(times, fastest[size])
