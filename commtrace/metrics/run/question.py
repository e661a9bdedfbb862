"""What a recorded workload asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.analysis import Question

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["question"]


def question(run: Measures) -> Question | None:
    """The question of the workload that was recorded, as its manifest has it; None without."""
    workload = run.told("workload")
    if not isinstance(workload.get("question"), str):
        return None
    answer = workload.get("answer")
    texts = isinstance(answer, list) and all(isinstance(part, str) for part in answer)
    column, *labels = answer if texts and answer else [""]
    return Question(workload["question"], column, tuple(labels))
