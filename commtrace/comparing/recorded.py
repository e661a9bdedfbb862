"""What a comparison is given of each recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.analysis import Summary
from commtrace.causal.work.cores import foreign_load
from commtrace.comparing.counted import counted_together
from commtrace.comparing.sample import sample
from commtrace.comparing.sides import Recording, Side
from commtrace.diagnosis import Diagnosis
from commtrace.metrics.rank.rows_of import ranks_of

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Recorded", "recordings", "started"]


@dataclass(frozen=True)
class Recorded:
    """A recording: what ran, its measures, and what its diagnosis says."""

    run: Summary
    measures: Measures
    diagnosis: Diagnosis


def recordings(side: Sequence[Recorded]) -> Side:
    """The recordings of a side, and which of their steps count."""
    samples = [sample(one.measures) for one in side]
    count = counted_together([its.step_ns for its in samples])
    return [
        Recording(
            its,
            left.steps,
            left.warm_up,
            foreign_load(one.measures) or 0.0,
            started(one),
            _gpu_hosts(one.measures),
        )
        for one, its, left in zip(side, samples, count, strict=True)
    ]


def started(one: Recorded) -> str:
    """When it was recorded, as its manifest says; nothing if it does not."""
    when = (one.measures.manifest or {}).get("started")
    return when if isinstance(when, str) else ""


def _gpu_hosts(run: Measures) -> frozenset[str] | None:
    with_gpu, ranks = ranks_of(run, "kernels"), run.rows("ranks")
    mine = np.isin(ranks.ints("rank"), [*with_gpu])
    return frozenset(map(str, ranks.coded("host").take(mine).decoded())) if with_gpu else None
