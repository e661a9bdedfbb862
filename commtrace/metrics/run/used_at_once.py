"""Whether a program uses what it has communicated in the very next operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.comms import element_bytes
from commtrace.errors import TraceError
from commtrace.measures import measure
from commtrace.metrics.rank.exposed_calls import exposed_ns, rows_of_operation
from commtrace.metrics.rank.rank_file import file_of
from commtrace.metrics.run.first_operators import first_rank, numbers_in
from commtrace.reader.json import OperatorInputs, operator_inputs

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["used_at_once"]

_NEXT = 4  # operators, those that they call included: one may make room for a result
_SOON_NS = 5_000_000


@measure
def used_at_once(run: Measures, op: str) -> float:
    """The share of an operation's exposed time on CPUs whose result is an input of what runs next.

    By the sizes of the inputs that the first rank's operators have, right behind calls that waited:
    a tensor of as many numbers as was received is that. 0 where shapes were not recorded, or the
    file cannot be read again, which takes as long as reading it did.
    """
    rows = rows_of_operation(run, op)
    calls = run.rows("collectives", rows)
    waited = (calls.ints("rank") == first_rank(run)) & (calls.ints("asynchronous") == 0)
    waited &= calls.coded("device").being("cpu")
    rows, calls = rows[waited], calls.take(waited)
    file = file_of(run, first_rank(run)) if rows.size else None
    if file is None:
        return 0.0
    try:
        its = operator_inputs(file)
    except TraceError:
        return 0.0
    time_ns = exposed_ns(run, rows)
    dtype = calls.coded("dtype").decoded()
    each = np.array([element_bytes(str(name)) if name else 0 for name in dtype])
    size = calls.ints("out_bytes")
    numbers = np.where((size == NULL) | (each == 0), -1, size // np.maximum(each, 1))
    used = _used(its, calls.ints("thread"), calls.when()[1], numbers)
    return float(time_ns[used].sum() / max(time_ns.sum(), 1))


def _used(its: OperatorInputs, thread: Int64, end_ns: Int64, numbers: Int64) -> Bool:
    """Whether one of the next operators of each call's thread has so many numbers to work on."""
    shapes = [json.loads(text) if text else None for text in its.shapes.names]
    inputs = [{numbers_in(one) for one in shape or ()} for shape in shapes]
    order = np.argsort(its.start_ns, kind="stable")
    found = np.zeros(thread.size, np.bool_)
    for one in np.unique(thread).tolist():
        mine = order[its.thread[order] == one]
        first = np.searchsorted(its.start_ns[mine], end_ns)
        for call in np.flatnonzero(thread == one).tolist():
            after = mine[first[call] : first[call] + _NEXT]
            after = after[its.start_ns[after] <= end_ns[call] + _SOON_NS]
            found[call] = any(
                code >= 0 and numbers[call] in inputs[code] for code in its.shapes.codes[after]
            )
    return found
