"""Operations move several times the bytes that their result needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Float64, distinct, grouped
from commtrace.causal.edits.reduced_gathers import all_reduced
from commtrace.causal.savings import Edit, Saving, of_transfers, saving
from commtrace.comms import bus_factor
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.decompositions import Pair, pairs
from commtrace.metrics.run.embedding_gradients import large_sums, sparse_sums
from commtrace.metrics.run.joined_rows import rows_of_operations
from commtrace.metrics.run.sharded_updates import reduced_whole
from commtrace.metrics.run.updated_gradients import unused_gradients
from commtrace.metrics.run.used_gathers import UsedGathers, summed_gathers
from commtrace.metrics.run.waits import matched
from commtrace.metrics.run.whole import step_count, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import mb, ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures


_SPARSE = 4  # times the bytes: rows one by one come with their numbers, are sorted and summed


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

    Why it costs time
        Each rank's part of a reduce_scatter is an n-th of its input. An output as large as the
        tensor takes an input n tensors long: n times the bytes, and at a given bandwidth n times as
        long, however good the algorithm.

    What to do
        Scatter the tensor itself: an output of 1/n of it on each rank. Or call all_reduce.
        Of parts that are summed: all_reduce them, or reduce_scatter them if each rank needs its
        part of the sum. Of embedding tables: sparse gradients, or a table in shards. Freeze what no
        optimizer updates before DDP is made. Where each rank updates a part, reduce_scatter
        gradients. The potential saving is the needless bytes' share of the time, and that of
        summing; what computes them in vain comes on top.

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
        yield from self._sparse(run)
        yield from self._unused(run)
        yield from self._whole(run)
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
            less = its.operations.ints("transfer_ns").astype(np.float64) * (1 - 2 / n)
            estimate = float(less.sum() + its.then_ns.sum())
            if worth_reporting(estimate, run, self.min_step_share):
                gain = saving(run, _all_reduced(run, its, less), estimate, self.min_step_share)
                if worth_reporting(gain.cost_ns, run, self.min_step_share):
                    yield self._of_sums(run, its, n, gain)

    def _sparse(self, run: Measures) -> Iterator[Finding]:
        most = float(large_sums(run).ints("transfer_ns").sum())
        for its in sparse_sums(run) if worth_reporting(most, run, self.min_step_share) else ():
            estimate = float(its.less_ns.sum())
            gain = of_transfers(run, its.operations, its.less_ns, estimate, self.min_step_share)
            inflation = 1 / max(its.table.needed(its.ranks), 1e-9)
            worth = worth_reporting(gain.cost_ns, run, self.min_step_share)
            if not worth or inflation < max(self.inflation, _SPARSE):
                continue
            table, used = its.table, its.ranks * its.table.used
            whose = "gradient of an embedding table,"
            if its.tables > 1:
                whose = f"gradients of {its.tables} embedding tables, each"
            yield self.finding(
                run.rows("collectives", rows_of_operations(run, its.operations)),
                summary=(
                    f"all_reduces carry the whole {whose} "
                    f"{table.rows:,} x {table.width} ({mb(table.size_bytes)}), of which "
                    f"{its.ranks} ranks use {used:,.0f} rows at most in a step"
                ),
                saving=gain,
                operations=its.operations.ints("operation"),
                evidence=(
                    Evidence("bytes moved by those of the rows", inflation, "x", self.inflation),
                    Evidence("rows that all ranks use, at most", 100 * used / table.rows, "%"),
                ),
                ruled_out=("a table that a matrix product shares: none has its shape",),
                advice=(
                    "sparse gradients (nn.Embedding(sparse=True), with SparseAdam or SGD): ranks "
                    "then gather the rows that they used, and update these only; or shard the "
                    "table, and exchange looked up rows by all_to_all"
                ),
            )

    def _unused(self, run: Measures) -> Iterator[Finding]:
        most = float(large_sums(run).ints("transfer_ns").sum())
        its = unused_gradients(run) if worth_reporting(most, run, self.min_step_share) else None
        if its is None:
            return
        estimate = float(its.less_ns.sum())
        gain = of_transfers(run, its.operations, its.less_ns, estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        yield self.finding(
            run.rows("collectives", rows_of_operations(run, its.operations)),
            summary=(
                f"all_reduces carry the gradients of {its.reduced:,} numbers at least, and the "
                f"optimizer updates {its.updated:,} of them at most"
            ),
            saving=gain,
            operations=its.operations.ints("operation"),
            evidence=(
                Evidence("numbers reduced by those updated", its.reduced / its.updated, "x", 2.0),
            ),
            ruled_out=("micro-batches: what each pass of the model may reduce counts once",),
            advice=(
                "freeze what is not trained before DDP is made (requires_grad_(False)), or give it "
                "to the optimizer: backward does not compute these gradients then either, which is "
                "saved besides"
            ),
        )

    def _whole(self, run: Measures) -> Iterator[Finding]:
        its = reduced_whole(run)
        # A ring's all_reduce is a reduce_scatter, and then an all_gather of as many bytes.
        less = its.ints("transfer_ns") / 2
        if not worth_reporting(float(less.sum()), run, self.min_step_share):
            return
        gain = of_transfers(run, its, less, float(less.sum()), self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        calls = run.rows("collectives", rows_of_operations(run, its))
        steps = max(step_count(run), 1) * distinct(calls.ints("rank")).size
        size = mb(float(calls.ints("size_bytes").sum()) / steps)
        yield self.finding(
            calls,
            summary=(
                f"all_reduces bring {size} of gradients a step to every rank, which updates a "
                "part, it seems: as many elements are all_gathered behind them"
            ),
            saving=gain,
            operations=its.ints("operation"),
            evidence=(
                Evidence("bytes moved by those of a reduce_scatter", 2.0, "x", self.inflation),
            ),
            ruled_out=("another tensor: in each step as many elements are gathered, and later",),
            advice=(
                "reduce_scatter the gradients, so that each rank gets the part that it updates "
                "(ZeRO-2, FSDP); a norm to clip by is the root of all_reduced squares of the parts"
            ),
            confidence="medium",
        )

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
