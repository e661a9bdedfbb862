"""Which ranks have the same part of a model, as a stage of a pipeline or of several."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING

from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.pipelines import chains_of, messages_of

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["other_stages", "stages"]


@measure
def stages(run: Measures) -> list[list[int]]:
    """The ranks of each stage, of all pipelines together; none where these are not alike."""
    try:
        handing_on = [*chains_of(messages_of(run, 1))]
    except CannotLook:
        return []
    pipelines = [ranks for ranks, its in handing_on if its.is_pipeline]
    if len({*map(len, pipelines)}) != 1:
        return []
    return [[*ranks] for ranks in zip(*pipelines, strict=True)]


def other_stages(run: Measures, ranks: Collection[int]) -> list[int]:
    """The ranks of the pipelines' other stages, if these are all of one stage or some; else none.

    One rank of several replicas' stages, or of tensor parallelism's, is no stage: those beside it
    have the same part of the model.
    """
    mine = [stage for stage in stages(run) if not set(stage).isdisjoint(ranks)]
    if {*chain.from_iterable(mine)} != {*ranks}:
        return []
    return [rank for stage in stages(run) if stage not in mine for rank in stage]
