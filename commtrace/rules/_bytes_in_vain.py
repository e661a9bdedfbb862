"""What is moved though few, or parts, of it are used: of byte-inflation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Float64, distinct
from commtrace.causal.savings import Saving, of_transfers
from commtrace.diagnosis import Evidence, Finding
from commtrace.metrics.run.embedding_gradients import large_sums, sparse_sums
from commtrace.metrics.run.joined_rows import rows_of_operations
from commtrace.metrics.run.padded_exchanges import exchanges, padded_exchanges
from commtrace.metrics.run.sharded_updates import reduced_whole
from commtrace.metrics.run.updated_gradients import unused_gradients
from commtrace.metrics.run.whole import step_count, worth_reporting
from commtrace.units import mb

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.rules.byte_inflation import ByteInflation
    from commtrace.table import Rows

__all__ = ["of_padding", "of_parts", "of_tables", "of_the_frozen"]

_SPARSE = 4  # times the bytes: rows one by one come with their numbers, are sorted and summed


def of_tables(rule: ByteInflation, run: Measures) -> Iterator[Finding]:
    """Whole gradients of embedding tables, of which steps use few rows."""
    for its in sparse_sums(run) if _sums_take_long(rule, run) else ():
        gain = _gain(rule, run, its.operations, its.less_ns)
        inflation = 1 / max(its.table.needed(its.ranks), 1e-9)
        if gain is None or inflation < max(rule.inflation, _SPARSE):
            continue
        table, used = its.table, its.ranks * its.table.used
        whose = "gradient of an embedding table,"
        if its.tables > 1:
            whose = f"gradients of {its.tables} embedding tables, each"
        yield rule.finding(
            run.rows("collectives", rows_of_operations(run, its.operations)),
            summary=(
                f"all_reduces carry the whole {whose} "
                f"{table.rows:,} x {table.width} ({mb(table.size_bytes)}), of which "
                f"{its.ranks} ranks use {used:,.0f} rows at most in a step"
            ),
            saving=gain,
            operations=its.operations.ints("operation"),
            evidence=(
                Evidence("bytes moved by those of the rows", inflation, "x", rule.inflation),
                Evidence("rows that all ranks use, at most", 100 * used / table.rows, "%"),
            ),
            ruled_out=("a table that a matrix product shares: none has its shape",),
            advice=(
                "sparse gradients (nn.Embedding(sparse=True), with SparseAdam or SGD): ranks "
                "then gather the rows that they used, and update these only; or shard the "
                "table, and exchange looked up rows by all_to_all"
            ),
        )


def of_the_frozen(rule: ByteInflation, run: Measures) -> Iterator[Finding]:
    """Gradients of what no optimizer updates."""
    its = unused_gradients(run) if _sums_take_long(rule, run) else None
    if its is None or (gain := _gain(rule, run, its.operations, its.less_ns)) is None:
        return
    yield rule.finding(
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


def of_parts(rule: ByteInflation, run: Measures) -> Iterator[Finding]:
    """Whole gradients on every rank, which updates a part of them."""
    its = reduced_whole(run)
    # A ring's all_reduce is a reduce_scatter, and then an all_gather of as many bytes.
    if (gain := _gain(rule, run, its, its.ints("transfer_ns") / 2)) is None:
        return
    calls = run.rows("collectives", rows_of_operations(run, its))
    steps = max(step_count(run), 1) * distinct(calls.ints("rank")).size
    size = mb(float(calls.ints("size_bytes").sum()) / steps)
    yield rule.finding(
        calls,
        summary=(
            f"all_reduces bring {size} of gradients a step to every rank, which updates a "
            "part, it seems: as many elements are all_gathered behind them"
        ),
        saving=gain,
        operations=its.ints("operation"),
        evidence=(Evidence("bytes moved by those of a reduce_scatter", 2.0, "x", rule.inflation),),
        ruled_out=("another tensor: in each step as many elements are gathered, and later",),
        advice=(
            "reduce_scatter the gradients, so that each rank gets the part that it updates "
            "(ZeRO-2, FSDP); a norm to clip by is the root of all_reduced squares of the parts"
        ),
        confidence="medium",
    )


def of_padding(rule: ByteInflation, run: Measures) -> Iterator[Finding]:
    """All_to_alls of buffers of a fixed size, into which a rank puts far fewer rows."""
    its = padded_exchanges(run) if _take_long(rule, run, exchanges(run)) else None
    if its is None:
        return
    padded = its.filled * rule.inflation <= 1
    operations, filled = its.operations.take(padded), its.filled[padded]
    gain = _gain(rule, run, operations, operations.ints("transfer_ns") * (1 - filled))
    if gain is None:
        return
    share = float(np.average(filled, weights=operations.ints("size_bytes")))
    yield rule.finding(
        run.rows("collectives", rows_of_operations(run, operations)),
        summary=(
            f"{len(operations)} all_to_alls carry buffers of a fixed size, of which rows fill "
            f"{share:.0%}, it seems: the rest is padding"
        ),
        saving=gain,
        operations=operations.ints("operation"),
        evidence=(Evidence("bytes moved by those of the rows", 1 / share, "x", rule.inflation),),
        ruled_out=("rows put in later: no other operator puts rows into as many elements",),
        advice=(
            "tell first how many rows go where, then send only these (all_to_all_single with split "
            "sizes, experts that drop no token), or lower the capacity factor: experts compute on "
            "the padding, too, which is saved besides"
        ),
    )


def _sums_take_long(rule: ByteInflation, run: Measures) -> bool:
    return _take_long(rule, run, large_sums(run))


def _take_long(rule: ByteInflation, run: Measures, its: Rows) -> bool:
    """Whether operations take so long at all that less of them can be worth it."""
    return worth_reporting(float(its.ints("transfer_ns").sum()), run, rule.min_step_share)


def _gain(rule: ByteInflation, run: Measures, its: Rows, less_ns: Float64) -> Saving | None:
    """What is saved if operations take so much less; None if that is not worth reporting."""
    gain = of_transfers(run, its, less_ns, float(less_ns.sum()), rule.min_step_share)
    return gain if worth_reporting(gain.cost_ns, run, rule.min_step_share) else None
