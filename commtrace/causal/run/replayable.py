"""Whether replays of a run hold: its graph has to explain what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.causal.run.recorded_steps import of_unlike_steps
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import CannotLook
from commtrace.measures import measure
from commtrace.metrics.run.sampled import SAMPLE_LACKS, is_sampled
from commtrace.units import percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["need_replay", "replayable"]

_LEAST = 2 / 3  # of the starts on GPUs


def replayable(run: Measures) -> bool:
    """Whether replays of a run say what it would be with something mended."""
    try:
        need_replay(run)
    except CannotLook:
        return False
    return True


@measure
def need_replay(run: Measures) -> None:
    """CannotLook where replays say nothing.

    That is where most events are missing, where a run has no graph, where its steps are not the
    same on all ranks, and on GPUs where too few starts of kernels and copies are explained by it.
    """
    if is_sampled(run):
        raise CannotLook(SAMPLE_LACKS)
    if of_unlike_steps(run):
        raise CannotLook(
            "needs the same steps on all ranks: most operations are of a step of one number on one "
            "rank, and of another on another"
        )
    explained = run_graph(run).explained
    if explained < _LEAST:
        raise CannotLook(
            "needs to know what the GPUs' work waited for, which the trace shows for "
            f"{percent(explained, 1)} of it"
        )
