"""Operations move several times the bytes that their result needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Float64, grouped
from commtrace.causal.edits.reduced_gathers import all_reduced
from commtrace.causal.savings import Edit, Saving, of_transfers, saving
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.decompositions import Pair, pairs
from commtrace.metrics.run.joined_rows import rows_of_operations
from commtrace.metrics.run.used_gathers import UsedGathers, summed_gathers
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._bytes_in_vain import of_padding, of_parts, of_tables, of_the_frozen
from commtrace.rules._latency import TINY_BYTES
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import mb, ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures


class ByteInflation(Rule, frozen=True):
    """Operations move several times the bytes that their result needs.

    What it detects
        In one group, a reduce_scatter whose output on every rank is as large as the whole
        tensor that an all_reduce (or reduce + broadcast) beside it reduces, then an
        all_gather to n times that: at least ``inflation`` times the bytes that summing the
        tensor takes, and at least ``min_step_share`` of the steps' time.
        On CPUs also an all_gather of whose parts the program makes the sum, or the mean, and
        nothing else before: n/2 times the bytes of an all_reduce, and each sums what one could.
        All_reduces of the whole gradients of embedding tables, of 1 MB or more, of which a step
        uses so few rows that exchanging these moves a quarter or less: known from the shapes of
        what looks up.
        Gradients that DDP all_reduces of more than twice as many numbers as the optimizer updates:
        known from the shapes of its operators, of all that it may update.
        All_reduces of GPUs, behind which the same group all_gathers as many elements in each step:
        gradients of which every rank gets all and updates a part.
        All_to_alls as large as buffers that rows are put into (index_copy, index_put, index_add)
        which fill less than ``1 / inflation`` of them: known from these operators' shapes.

    Why it costs time
        Each rank's part of a reduce_scatter is an n-th of its input. An output as large as the
        tensor takes an input n tensors long: n times the bytes, and at a given bandwidth n times as
        long, however good the algorithm.

    What to do
        Scatter the tensor itself: an output of 1/n of it on each rank. Or call all_reduce.
        Of parts that are summed: all_reduce them, or reduce_scatter them if each rank needs its
        part of the sum. Of embedding tables: sparse gradients, or a table in shards. Freeze what no
        optimizer updates before DDP is made. Where each rank updates a part, reduce_scatter
        gradients. Send rows without padding. The potential saving is the needless bytes' share of
        the time, of sums of 4 kB or less none, and that of summing; what computes them in vain
        comes on top.

    Blind spots
        The tensor's size is known only from an all_reduce, or a reduce + broadcast, beside
        the pair. Without one the rule is skipped: any size is plausible.
        That the two sum the same tensor follows from sizes and order, not from addresses; that
        parts are summed, from the operators behind the call, whose operands are not in the trace;
        which all_reduce carries a table's gradient, from its size. What an optimizer does to rows
        without a gradient is not counted.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    inflation: float = 1.5
    min_step_share: float = 0.01

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group and size."""
        size = run.rows("collectives").ints("size_bytes")
        if size.size and (size == NULL).all():
            raise CannotLook("needs sizes: record with record_shapes=True")
        yield from self._summed(run)
        for kind in (of_tables, of_the_frozen, of_parts, of_padding):
            yield from kind(self, run)
        found = [pair for pair in pairs(run) if pair.first == "reduce_scatter"]
        if found and all(pair.tensor_bytes is None for pair in found):
            raise CannotLook(
                "needs the tensor's size: nothing beside reduce_scatter + all_gather shows it, so "
                "whether they move too many bytes is unknown"
            )
        for pair in found:
            if pair.inflation < self.inflation:
                continue
            gain = _gain(run, pair, self.min_step_share)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(pair, gain)

    def _summed(self, run: Measures) -> Iterator[Finding]:
        every = summed_gathers(run)
        rows = every.operations
        communicator, dtype = (rows.coded(name) for name in ("communicator", "dtype"))
        for kind in grouped(communicator, dtype, rows.ints("size_bytes")):
            its = UsedGathers(rows.take(kind), every.then_ns[kind])
            n = int(its.operations.ints("expected")[0])
            if n < 2:
                continue
            # Of so few bytes an all_reduce takes as long.
            tiny = its.operations.ints("size_bytes")[0] <= TINY_BYTES
            less = its.operations.ints("transfer_ns").astype(np.float64)
            less *= 0.0 if tiny else 1 - 2 / n
            estimate = float(less.sum() + its.then_ns.sum())
            if worth_reporting(estimate, run, self.min_step_share):
                gain = saving(run, _all_reduced(run, its, less), estimate, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    yield self._of_sums(run, its, n, gain)

    def _of_sums(self, run: Measures, gathers: UsedGathers, n: int, gain: Saving) -> Finding:
        its, summing = gathers.operations, median(gathers.then_ns)
        size_bytes = int(its.ints("size_bytes")[0])
        part, time = mb(size_bytes // n), median(its.ints("transfer_ns"))
        return self.finding(
            run.rows("collectives", rows_of_operations(run, its)),
            summary=(
                f"{len(its)} all_gathers bring {n} x {part} to every rank, which sums them in "
                f"{ms(summing)}: "
                + (
                    f"{multiple(n / 2)} the bytes of an all_reduce"
                    if n > 2
                    else "an all_reduce does both"
                )
            ),
            saving=gain,
            operations=its.ints("operation"),
            evidence=(
                Evidence("bytes moved by those of an all_reduce", n / 2, "x", self.inflation),
                Evidence("received by each rank, each time", size_bytes * (n - 1) / n / 1e6, "MB"),
                Evidence("time of each, median", time / 1e6, "ms"),
                Evidence("summing what it brings, median", summing / 1e6, "ms"),
            ),
            advice=(
                "all_reduce the tensor, or reduce_scatter it if each rank needs only its part of "
                "the sum; that the parts are only summed is inferred from the operators behind it"
            ),
            confidence="medium",
        )

    def _finding(self, pair: Pair, gain: Saving) -> Finding:
        assert pair.tensor_bytes
        n, count = pair.group_size, len(pair.times)
        time = median(pair.times.ints("time"))
        sent = pair.size_bytes * 2 * (bus_factor("all_gather", n) or 0)
        return self.finding(
            (pair.times.ints("start"), pair.times.ints("end")),
            operations=np.append(
                *(pair.times.ints(name) for name in ("operation", "operation_second"))
            ),
            summary=(
                f"reduce_scatter + all_gather move {multiple(pair.inflation)} the bytes that "
                f"summing {mb(pair.tensor_bytes)} needs: {mb(pair.size_bytes)}, in "
                f"{ms(time)}"
            ),
            streams=pair.streams,
            saving=gain,
            evidence=(
                Evidence("bytes moved by bytes needed", pair.inflation, "x", self.inflation),
                Evidence("sent by each rank, each time", sent / 1e6, "MB"),
                Evidence("needed", sent / pair.inflation / 1e6, "MB"),
                Evidence(f"time of the pair, median of {count}", time / 1e6, "ms"),
            ),
            ruled_out=(
                f"another tensor: {mb(pair.tensor_bytes)} are summed beside it, as often",
                "sharding: nothing that could have used the shards ran between the two",
            ),
            advice=(
                f"give reduce_scatter an output of 1/{n} of the tensor "
                f"({mb(pair.tensor_bytes // n)}), not one as large as it; "
                "or call all_reduce"
            ),
            confidence="high" if count >= 2 else "medium",
        )

    @staticmethod
    def bad() -> Measures:
        """An all_reduce of 4 MB, and reduce_scatter + all_gather of 16 MB on four ranks."""
        return _pair(output=4_000_000)

    @staticmethod
    def good() -> Measures:
        """The same with a reduce_scatter to 1 MB on each."""
        return _pair(output=1_000_000)


def _all_reduced(run: Measures, its: UsedGathers, less_ns: Float64) -> Edit:
    number, summing_ns = its.operations.ints("operation"), its.then_ns.astype(np.float64)
    return lambda lag_ns: all_reduced(run, number, less_ns, summing_ns, lag_ns)


def _pair(output: int) -> Measures:
    run = Tiny(ranks=4)
    half_us = output / 4e6 * 400
    for rank in range(4):
        for step in range(3):
            start = step * 2000
            run.collective(rank, "all_reduce", start, 200, size=4_000_000)
            run.collective(rank, "reduce_scatter", start + 300, half_us, size=4 * output)
            run.collective(rank, "all_gather", start + 320 + half_us, half_us, size=4 * output)
    return run.trace()


def _gain(run: Measures, pair: Pair, min_step_share: float) -> Saving:
    """What is saved without the share of the operations' time that the needless bytes have."""
    operation, time = (
        np.concatenate([pair.times.ints(half) for half in halves])
        for halves in (("operation", "operation_second"), ("first", "second"))
    )
    less = time * (1 - 1 / pair.inflation)
    every = matched(run).operations
    each = every.take(np.searchsorted(every.ints("operation"), operation))
    return of_transfers(run, each, less, float(less.sum()), min_step_share)
