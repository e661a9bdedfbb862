"""What a report shows: a summary of the run, the measures, the findings; a rule explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from commtrace.diagnosis import Note, Verdict, about

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Analysis", "Question", "Summary"]


_Rank = Annotated[int, about("A rank.")]
_Backend = Annotated[str, about("gloo, nccl, …")]
_Device = Annotated[str, about("torch's name: `cuda:0`, `cpu`.")]
_Model = Annotated[str, about("A GPU's model, as the driver names it.")]
_Host = Annotated[str, about("A host's name.")]


@dataclass(frozen=True)
class Summary:
    """What ran."""

    name: str
    world_size: Annotated[
        int | None, about("Ranks in the job; null where no trace has it.", "ranks")
    ]
    ranks: Annotated[tuple[_Rank, ...], about("The ranks whose traces are here, ascending.")]
    missing_ranks: Annotated[tuple[_Rank, ...], about("The ranks of the job whose traces are not.")]
    backends: Annotated[tuple[_Backend, ...], about("What communicates.")]
    devices: Annotated[tuple[_Device, ...], about("The devices that did any work.")]
    gpus: Annotated[tuple[_Model, ...], about("The models of GPUs that the traces name.")]
    hosts: Annotated[tuple[_Host, ...], about("The hosts that the traces name.")]
    span_ns: Annotated[int, about("First start to last end in the longest trace.", "ns")]
    steps: Annotated[int, about("Different profiler steps.", "steps")]


@dataclass(frozen=True)
class Question:
    """What a recorded workload asks, and where in the table of ranges the answer is.

    ``column`` of the rows of ``labels``, the first of which the others are held against; both
    are empty where the findings answer.
    """

    text: str
    column: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Analysis:
    """One run's analysis, the input of every report: what ran, its measures, the verdict.

    ``arguments`` are those of the command line that makes it again: paths and options of rules.
    """

    run: Summary
    question: Question | None
    notes: tuple[Note, ...]
    measures: Measures
    verdict: Verdict
    arguments: tuple[str, ...] = ()
