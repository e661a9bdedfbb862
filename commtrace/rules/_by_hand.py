"""What is said of sums that a program makes by hand, where an all_reduce would make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import codes, first_rows
from commtrace.causal.edits.reduced_gathers import all_reduced_instead
from commtrace.causal.savings import Edit
from commtrace.metrics.run.sums_by_hand import SMALL_BYTES, HandMadeSum
from commtrace.metrics.run.whole import has_steps, step_count
from commtrace.units import counted, ms, size

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "advice",
    "and_flat",
    "as_all_reduces",
    "flattened",
    "summary",
    "taken_ns",
    "transfer_ns",
]

_SEVERAL = 4


def flattened(run: Measures, its: HandMadeSum) -> HandMadeSum:
    """The same sums of flat tensors, where a step has several: of what is small one takes its time.

    Of so few bytes each takes as long as all of them.
    """
    small = its.tensor_bytes < SMALL_BYTES
    each = its.sums / max(step_count(run), 1) * float(small.mean())
    if not has_steps(run) or each < _SEVERAL:
        return its
    return replace(its, needed=np.where(small, its.needed / each, its.needed))


def as_all_reduces(run: Measures, its: HandMadeSum) -> Edit:
    """Each sum is made by an all_reduce."""
    return lambda lag_ns: all_reduced_instead(run, its, lag_ns)


def transfer_ns(run: Measures, its: HandMadeSum) -> tuple[float, float]:
    """How long all its operations transfer, and how long all_reduces would."""
    once = first_rows(codes(its.operation))
    took = its.transfer_ns(run)[once]
    return float(took.sum()), float((took * its.needed[once]).sum())


def taken_ns(run: Measures, its: HandMadeSum) -> float:
    """What they take beyond all_reduces: transfers, and the summing of the rank with most."""
    took, needed = transfer_ns(run, its)
    rank = run.rows("collectives").ints("rank")[its.rows]
    return took - needed + float(np.bincount(rank, its.summing_ns).max())


def summary(its: HandMadeSum) -> str:
    """What the program does instead."""
    low, high = (size(int(each)) for each in (its.tensor_bytes.min(), its.tensor_bytes.max()))
    tensor = low if low == high else f"{low} to {high}"
    does = {
        "root": f"gathers {tensor} from every rank, sums, and sends all the sum",
        "messages": f"receives {tensor} from every other rank, sums, and sends each the sum",
        "broadcasts": f"every rank broadcasts {tensor} in turn, and each sums all of them",
        "ring": f"every rank hands on {tensor} around a ring, and sums what it gets",
    }[its.way]
    who = "" if its.root is None else f"rank {its.root} "
    return f"{who}{does}: {counted(its.sums, 'all_reduce')} by hand"


def advice(run: Measures, its: HandMadeSum, needed_ns: float) -> str:
    """To call what does it at once."""
    do = f"call all_reduce: about {ms(needed_ns / its.sums)} each, by the bytes that links carry"
    return do + and_flat(run, its.sums)


def and_flat(run: Measures, count: int) -> str:
    """That tensors can go together, where each step has several of so many, of whatever sizes."""
    each = count / max(step_count(run), 1)
    if not has_steps(run) or each < _SEVERAL:
        return ""
    return f"; {each:.0f} tensors go that way in each step: flatten them into one"
