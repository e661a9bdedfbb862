"""Which ranks have the same part of a model, as a stage of a pipeline or of several."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes, least, most
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.pipelines import Messages, chains_of, messages_of

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["micro_batches", "other_stages", "stages"]


@measure
def stages(run: Measures) -> list[list[int]]:
    """The ranks of each stage, of all pipelines together; none where these are not alike."""
    pipelines = [ranks for ranks, _ in _pipelines(run)]
    if len({*map(len, pipelines)}) != 1:
        return []
    return [[*ranks] for ranks in zip(*pipelines, strict=True)]


@measure
def micro_batches(run: Measures) -> Int64:
    """The operations that hand on pipelines' micro-batches: activations, and their gradients.

    That is what goes over a link both ways in one size, and the largest of each way.
    """
    found = [np.empty(0, np.int64)]
    for _, its in _pipelines(run):
        size = its.rows.ints("size_bytes")
        way = codes(its.sender, its.receiver)
        alike = codes(its.link, size)
        count = its.sender.size
        both = least(alike, its.sender, count) < most(alike, its.sender, count)
        largest = most(way, size, count)[way]
        found.append(its.rows.ints("operation")[both[alike] | (size == largest)])
    return np.concatenate(found)


def other_stages(run: Measures, ranks: Collection[int]) -> list[int]:
    """The ranks of the pipelines' other stages, if these are all of one stage or some; else none.

    One rank of several replicas' stages, or of tensor parallelism's, is no stage: those beside it
    have the same part of the model.
    """
    mine = [stage for stage in stages(run) if not set(stage).isdisjoint(ranks)]
    if {*chain.from_iterable(mine)} != {*ranks}:
        return []
    return [rank for stage in stages(run) if stage not in mine for rank in stage]


@measure
def _pipelines(run: Measures) -> list[tuple[list[int], Messages]]:
    """The ranks of each, in their order, and the messages that they hand on."""
    try:
        handing_on = [*chains_of(messages_of(run, 1))]
    except CannotLook:
        return []
    return [(ranks, its) for ranks, its in handing_on if its.is_pipeline]
