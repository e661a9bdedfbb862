"""All_gathers of tensor parallelism that it can do without: cut again, or of whole gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, most
from commtrace.metrics.run.called_in import in_backward

if TYPE_CHECKING:
    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["gathered_and_cut", "gathered_behind"]

_LAYERS = 2
_SCALAR_BYTES = 1024


class _Layers(NamedTuple):
    """Which all_gathers are of groups whose layers sum activations in forward and in backward.

    Of one size, twice or more in both. And scatter nothing: else what they gather are sharded
    parameters, or a sequence. ``step`` is a number for each group of a rank and step, ``back`` what
    is called in backward.
    """

    gathers: Bool
    step: Int64
    back: Bool


def gathered_and_cut(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather in forward what is cut again, and in backward likewise.

    What a gather's backward does is to cut, and what a cut's does is to gather: so both passes have
    as many all_gathers of each size, of two layers or more.
    """
    its = _of_layers(run, rows)
    of_size = codes(its.step, rows.ints("size_bytes"))
    kinds = int(of_size.max(initial=-1)) + 1
    ahead, behind = (
        np.bincount(of_size, its.gathers & each, kinds) for each in (~its.back, its.back)
    )
    found: Bool = its.gathers & ((ahead == behind) & (ahead >= _LAYERS))[of_size]
    return found


def gathered_behind(run: Measures, rows: Rows) -> Bool:
    """Which rows of ``sequences`` gather when backward is over, two or more in a step.

    These are no activations, but gradients or parameters, as of ``full_tensor()``.
    """
    its, place = _of_layers(run, rows), np.arange(len(rows))
    count = int(its.step.max(initial=-1)) + 1
    over = most(its.step[its.back], place[its.back], count)[its.step]
    found: Bool = its.gathers & (over != NULL) & (place > over)
    found &= (np.bincount(its.step, found, count) >= _LAYERS)[its.step]
    return found


def _of_layers(run: Measures, rows: Rows) -> _Layers:
    group, size = rows.ints("sequence"), rows.ints("size_bytes")
    op = rows.coded("op")
    large = (rows.ints("step") != NULL) & (size > _SCALAR_BYTES)
    back = np.isin(rows.ints("operation"), in_backward(run))
    step = codes(group, rows.ints("step"))
    sums, of_size = large & op.being("all_reduce"), codes(step, size)
    kinds = int(of_size.max(initial=-1)) + 1
    least = np.minimum(*(np.bincount(of_size, sums & its, kinds) for its in (back, ~back)))
    of_layers = np.bincount(step, least[of_size] >= _LAYERS) > 0
    scatters = np.bincount(group, op.being("reduce_scatter"), int(group.max(initial=-1)) + 1) > 0
    return _Layers(large & op.being("all_gather") & of_layers[step] & ~scatters[group], step, back)
