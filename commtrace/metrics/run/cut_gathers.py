"""All_gathers of tensor parallelism that it can do without: cut again, or of whole gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, most
from commtrace.metrics.run.called_in import in_backward

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["OfLayers", "gathers_of_layers"]

_LAYERS = 2
_SCALAR_BYTES = 1024


class OfLayers(NamedTuple):
    """Which rows of ``sequences`` are all_gathers that layers of tensor parallelism do not need.

    ``cut``: in forward of what is cut again, and in backward likewise. What a gather's backward
    does is to cut, and what a cut's does is to gather: so both passes have as many of each size, of
    two layers or more. ``behind``: when backward is over, two or more in a step. These are no
    activations, but gradients or parameters, as of ``full_tensor()``.
    """

    cut: Bool
    behind: Bool


def gathers_of_layers(run: Measures, rows: Rows) -> OfLayers:
    """Those of groups whose layers sum activations in forward and in backward.

    Of one size, twice or more in both. And scatter nothing: else what they gather are sharded
    parameters, or a sequence.
    """
    group, size, op = rows.ints("sequence"), rows.ints("size_bytes"), rows.coded("op")
    large = (rows.ints("step") != NULL) & (size > _SCALAR_BYTES)
    gathers, sums = (large & op.being(name) for name in ("all_gather", "all_reduce"))
    if not gathers.any() or not sums.any():
        return OfLayers(gathers & False, gathers & False)
    back = np.isin(rows.ints("operation"), in_backward(run))
    step = codes(group, rows.ints("step"))
    of_size = codes(step, size)
    of_layers = np.bincount(step, _in_both(sums, back, of_size).min(axis=0)[of_size] >= _LAYERS) > 0
    scatters = np.bincount(group, op.being("reduce_scatter")) > 0
    gathers &= of_layers[step] & ~scatters[group]
    ahead, behind = _in_both(gathers, back, of_size)
    cut: Bool = gathers & ((ahead == behind) & (ahead >= _LAYERS))[of_size]
    return OfLayers(cut, _when_backward_is_over(gathers, back, step))


def _in_both(which: Bool, back: Bool, number: Int64) -> Int64:
    """How many of each number are in forward, and how many in backward."""
    return np.stack([np.bincount(number, which & its).astype(np.int64) for its in (~back, back)])


def _when_backward_is_over(gathers: Bool, back: Bool, step: Int64) -> Bool:
    place = np.arange(step.size)
    over = most(step[back], place[back], int(step.max()) + 1)[step]
    found: Bool = gathers & (over != NULL) & (place > over)
    found &= (np.bincount(step, found) >= _LAYERS)[step]
    return found
