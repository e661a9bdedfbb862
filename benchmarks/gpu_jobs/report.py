"""The judged jobs as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.gpu_jobs.job import Job
from commtrace.diagnosis import Finding

__all__ = ["Judged", "table", "totals"]

COLUMNS = (
    "job",
    "ranks",
    "what is wrong",
    "costs, ms per step",
    "first finding",
    "saves, ms per step",
    "error",
    "right",
)


@dataclass(frozen=True)
class Judged:
    """A job, its steps with the fault and without, and the first finding."""

    job: Job
    ranks: int
    steps: int
    faulty_ms: float
    healthy_ms: float
    first: Finding | None

    @property
    def blamed(self) -> tuple[int, ...]:
        """The ranks that the first finding blames; none where it is all that were recorded."""
        recorded = self.ranks - len(self.job.lost)
        ranks = self.first.ranks if self.first else ()
        return ranks if len(ranks) < recorded else ()

    @property
    def right(self) -> bool:
        """Whether the first finding is as it should be; unsure where files are missing."""
        if self.first is None:
            return not self.job.wrong
        fits = self.first.rule in self.job.rules and self.blamed == self.job.ranks
        return fits and (not self.job.lost or self.first.confidence == "low")

    @property
    def cost_ms(self) -> float:
        """What the fault costs each step."""
        return self.faulty_ms - self.healthy_ms

    @property
    def saving_ms(self) -> float | None:
        """What the first finding promises for each step."""
        return self.first.cost_ns / 1e6 / self.steps if self.first else None

    @property
    def error(self) -> float | None:
        """The promise against the cost, less 1; None for a healthy job."""
        if not self.job.wrong or self.saving_ms is None:
            return None
        return self.saving_ms / self.cost_ms - 1


def table(all_judged: Iterable[Judged]) -> str:
    """One row for each job."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(list(_cells(each)) for each in all_judged)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(judged: Judged) -> Iterator[str]:
    job = judged.job
    yield job.name
    yield str(judged.ranks)
    yield job.wrong or "nothing"
    yield f"{judged.cost_ms:.2f}" if job.wrong else ""
    yield _first(judged)
    yield "" if judged.saving_ms is None else f"{judged.saving_ms:.2f}"
    yield "" if judged.error is None else f"{round(100 * judged.error, 1) + 0:+.1f} %"
    yield "yes" if judged.right else "no"


def _first(judged: Judged) -> str:
    if judged.first is None:
        return "none"
    ranks = ", ".join(map(str, judged.blamed))
    return f"{judged.first.rule} of {ranks}" if ranks else judged.first.rule


def totals(all_judged: Sequence[Judged]) -> str:
    """What it comes to."""
    faulty = [each for each in all_judged if each.job.wrong]
    healthy = [each for each in all_judged if not each.job.wrong]
    right, untrue = sum(each.right for each in faulty), sum(not each.right for each in healthy)
    lines = [
        f"- first finding right: {right} of {len(faulty)} jobs with a fault",
        f"- first finding not true: {untrue} of {len(healthy)} healthy jobs",
    ]
    errors = [abs(each.error) for each in faulty if each.right and each.error is not None]
    if errors:
        lines.append(
            f"- saving of the right ones: median error {100 * median(errors):.1f} %, "
            f"at most 20 % in {sum(error <= 0.2 for error in errors)} of {len(errors)}"
        )
    return "\n".join(lines)
