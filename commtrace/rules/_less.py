"""What to ask of programs that communicate much: whether they could do with less."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, least, most, numbered, sums
from commtrace.causal.critical_path import critical_path
from commtrace.comms import POINT_TO_POINT, element_bytes, is_update
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.object_collectives import of_objects
from commtrace.metrics.run.sizes import small_per_step
from commtrace.metrics.run.unused_search import searches_unused
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median
from commtrace.rules._rings import detours
from commtrace.table import Rows
from commtrace.units import mb

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "OF_SHARDS",
    "UNUSED",
    "asked",
    "fewer_bytes",
    "fused",
    "gathers_shards",
    "in_half",
    "less",
    "longest",
    "many_small",
    "sharded",
    "small",
]

OF_SHARDS = ("all_gather", "reduce_scatter")
"""What is called for parameters and gradients of which each rank keeps a part."""

_MUCH = 0.25  # of what is transferred
_MANY = 16  # of one operation in a step
_MOSTLY = 0.5
_HARDLY_ANY = 0.05  # of the bytes
_FEW_BYTES = 300_000
_UNIT_BYTES = 1_000_000  # of parameters: no block of a model that is worth sharding has fewer
_HALF_BYTES = 2  # of an element in half precision
_SMALL_BYTES = 1_000_000  # most of whose time is latency: fewer of them save little
_JOINS_STATISTICS = re.compile("batch_norm_reduce_statistics")
_SYNC_BATCH_NORM = (
    "with SyncBatchNorm's, for which each layer waits: synchronise within hosts alone "
    "(process_group), or where a rank's batch is large enough, or with GroupNorm, not at all"
)
_ONE_BY_ONE = (
    "if ranks are served one after another, let all go at once: batch_isend_irecv, or a collective "
    "(scatter, gather, all_to_all)"
)
_ASK = {
    "broadcast": "if it is the same in every step, send it once, before the loop",
    "all_gather": "all_reduce what is only summed, do not gather what each rank cuts its own part "
    "out of again, and gather what does not change once",
    "all_to_all": "send each rank only what it needs: chosen beforehand, with split sizes in place "
    "of padding",
    "gather": "let each rank reduce what it has, and gather less",
    "send": _ONE_BY_ONE,
    "recv": _ONE_BY_ONE,
}
"""What to ask of a program whose communication is mostly that: a trace shows no contents."""
_OBJECTS = (
    "send tensors in place of Python objects, which are pickled, and sent behind their lengths"
)


_OF_UPDATES = ("all_gather", "broadcast")
_UPDATED = (
    "it sends what the optimizer has just updated: in smaller buckets the next forward can begin "
    "with those that have arrived"
)
UNUSED = (
    "leave out find_unused_parameters=True if all are used (torch warns then): DDP walks the whole "
    "graph behind each forward pass, and all_reduces which parameters it found"
)
"""What to do where DDP searches for unused parameters."""


def asked(run: Measures, op: str | None) -> str:
    """What to ask of a program whose communication is mostly one operation; empty if nothing."""
    if op is None:
        return ""
    if of_objects(run, op):
        return f"{_OBJECTS}; "
    if op in POINT_TO_POINT and (ring := detours(run)):
        return ring
    if op == "all_reduce" and searches_unused(run):
        return f"{UNUSED}; "
    if many := many_small(run, op):
        return many
    if op in _OF_UPDATES and _behind_updates(run, op):
        return f"{_UPDATED}; "
    return f"{_ASK[op]}; " if op in _ASK and not _does_so_already(run, op) else ""


def many_small(run: Measures, op: str) -> str:
    """That small operations could be fewer, where a step has many; latency-bound tells of rows."""
    of_statistics = op in ("all_gather", "all_reduce") and _synchronises_statistics(run)
    of_units = not of_statistics and op in OF_SHARDS and sharded(run)
    count = small_per_step(run, op, _UNIT_BYTES if of_units else _FEW_BYTES)
    less = ": put what is small into one"
    if of_statistics:
        less = f", {_SYNC_BATCH_NORM}"
    elif of_units:
        less = f" below {mb(_UNIT_BYTES)}: shard whole blocks, not each small module"
    return f"each step has {count:.0f} of them{less}; " if count >= _MANY else ""


def _synchronises_statistics(run: Measures) -> bool:
    """Whether SyncBatchNorm ran on GPUs, whose kernel joins the ranks' statistics."""
    return any(map(_JOINS_STATISTICS.search, run.rows("kernels").coded("name").occurring()))


def _behind_updates(run: Measures, op: str) -> bool:
    """Whether nearly all of these operations are called in or behind an optimizer's step.

    That is since the last one of their step has begun. Not those that are many already.
    """
    marks = run.rows("steps")
    marks = marks.take(marks.coded("label").where(is_update))
    calls = run.rows("collectives")
    calls = calls.take(calls.coded("op").being(op) & (calls.ints("step") != NULL))
    if not len(marks) or not len(calls):
        return False
    each = np.bincount(codes(calls.ints("rank"), calls.ints("step")))
    if median(each) >= _MANY:
        return False
    cell = numbered(
        np.concatenate((marks.ints("rank"), calls.ints("rank"))),
        np.concatenate((marks.ints("step"), calls.ints("step"))),
    )
    of_marks, of_calls = cell[: len(marks)], cell[len(marks) :]
    last = most(of_marks, marks.ints("start_ns"), int(cell.max()) + 1)[of_calls]
    launch, start = calls.ints("launch_ns"), calls.ints("start_ns")
    called = np.where(launch == NULL, start, launch)
    return float(np.mean((last != NULL) & (called >= last))) >= 1 - _HARDLY_ANY


def _does_so_already(run: Measures, op: str) -> bool:
    """Whether what ``_ASK`` asks is done, or not what these operations are for.

    all_to_alls that send and receive unlike amounts, or unlike ones from rank to rank, have split
    sizes; groups that also reduce_scatter gather parameters, or a sequence, of which each rank
    keeps a part; what is fused with a matmul is cut for it; the stages of a pipeline send to their
    neighbours alone; what is sent and received by one kernel goes at once.
    """
    calls, groups = run.rows("collectives"), matched(run).matches.coded("communicator")
    mine = calls.coded("op").being(op)
    if op == "all_to_all":
        return _has_splits(calls.take(mine), matched(run).waits.ints("operation")[mine])
    if op == "all_gather":
        return sharded(run) or fused(calls.take(mine))
    if op in POINT_TO_POINT:
        messages = calls.take(calls.coded("op").where(POINT_TO_POINT.__contains__))
        in_pipeline = bool(dimensions_of(run, groups.take(mine)).being("pp").all())
        return in_pipeline or _together(messages)
    return False


def _together(messages: Rows) -> bool:
    """Whether most of them share a kernel with another: they are called for together."""
    names = ("rank", "stream", "start_ns", "duration_ns")
    kernel = codes(*(messages.ints(name) for name in names), messages.coded("device"))
    return bool(np.mean(np.bincount(kernel)[kernel] > 1) > _MOSTLY)


def _has_splits(calls: Rows, operation: Int64) -> bool:
    sent, received = calls.ints("in_bytes"), calls.ints("out_bytes")
    known = (sent != NULL) & (received != NULL)
    if (known & (sent != received)).any():
        return True
    number = numbered(operation[known])
    count = int(number.max(initial=-1)) + 1
    low, high = (of(number, sent[known], count) for of in (least, most))
    return bool((low < high).any())


def sharded(run: Measures) -> bool:
    """Whether groups that gather nearly all bytes also reduce_scatter: what ranks keep parts of."""
    calls = run.rows("collectives")
    gathers, size = calls.coded("op").being("all_gather"), calls.ints("size_bytes")
    others = gathers & ~gathers_shards(run)
    known = not (size[others] == NULL).any()
    return known and bool(size[others].sum() <= _HARDLY_ANY * size[gathers].clip(min=0).sum())


def gathers_shards(run: Measures) -> Bool:
    """Which ``collectives`` are all_gathers of a group that also reduce_scatters."""
    op, groups = run.rows("collectives").coded("op"), matched(run).matches.coded("communicator")
    scattering = groups.codes[op.being("reduce_scatter")]
    return op.being("all_gather") & np.isin(groups.codes, scattering[scattering >= 0])


def fused(calls: Rows) -> bool:
    """Whether all are part of a matmul that overlaps them in chunks (``symm_mem``)."""
    names = calls.coded("call")
    return len(calls) > 0 and bool(names.where(lambda name: "matmul" in name).all())


def fewer_bytes(run: Measures, ops: list[str]) -> str:
    """That fewer bytes help, unless all that these operations send is small, or in half already."""
    rows = np.flatnonzero(run.rows("collectives").coded("op").where(ops.__contains__))
    enough = small(run, ops) or in_half(run, rows)
    return "" if enough else "in fewer bytes (half precision), "


def in_half(run: Measures, rows: Int64) -> bool:
    """Whether all of these rows of ``collectives`` are known to be of half precision or less."""
    dtype = run.rows("collectives", rows).coded("dtype")
    halves = dtype.where(lambda name: element_bytes(name) <= _HALF_BYTES)
    return rows.size > 0 and bool(halves.all())


def less(run: Measures, op: str) -> str:
    """To communicate less: in fewer bytes, if these can be fewer, or less often."""
    fewer = fewer_bytes(run, [op])
    return (
        f"communicate less: {f'{fewer}or less often' if fewer else 'less often'} (gradient "
        "accumulation, larger batches), and see whether the links are as fast as they should be"
    )


def longest(run: Measures) -> list[str]:
    """The operations that have most of the critical path's transfers."""
    path = critical_path(run)
    moved = path.take(path.coded("kind").being("transfer") & path.coded("op").known)
    ops = moved.coded("op").occurring()
    number = numbered(moved.coded("op").codes.astype(np.int64))
    times = sums(number, moved.ints("time_ns"), len(ops))
    most = np.argsort(-times, kind="stable").tolist()
    return [ops[at] for at in most if times[at] >= _MUCH * times.sum()]


def small(run: Measures, ops: list[str]) -> bool:
    """Whether all of these operations are known to send little."""
    its = matched(run).operations
    size = its.ints("size_bytes")[its.coded("op").where(ops.__contains__)]
    return size.size > 0 and bool(((size != NULL) & (size < _SMALL_BYTES)).all())
