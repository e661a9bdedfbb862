"""What the diagnosis says of a recording, or of some steps of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.recorded.measure import progress
from commtrace import load
from commtrace.rules import RULES

__all__ = ["Ask", "Finding", "Trial", "analysed", "each", "whole"]

Finding = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """How long each of the ``steps`` took, and the findings; or why there are none."""

    steps: range = range(0)
    step_ms: float = 0.0
    findings: tuple[Finding, ...] = ()
    failed: str = ""

    @property
    def first(self) -> Finding | None:
        """What a user is told first: no symptom of another, and no good news."""
        causes = (
            finding
            for finding in self.findings
            if not finding["explained_by"] and not RULES[finding["rule"]].good_news
        )
        return next(causes, None)

    @property
    def predicted_ms(self) -> float | None:
        """What the first finding promises for each step."""
        return self.first["cost_ns"] / 1e6 / len(self.steps) if self.first else None


Ask = Callable[[Path], list[Trial]]
"""What to make of a recording: a module's function, since another process calls it."""


def analysed(folder: Path) -> Trial:
    """The diagnosis of what is there, all rules with their defaults.

    A program that counts no steps has one.
    """
    run = load(folder, workers=1)
    steps = run.steps[run.steps["label"].isna()]
    if steps.empty:
        numbers = range(1)
        whole_ns = run.ranks["end_ns"].max() - run.ranks["start_ns"].min()
    else:
        numbers = range(int(steps["step"].min()), int(steps["step"].max()) + 1)
        whole_ns = (steps["start_ns"] + steps["duration_ns"]).max() - steps["start_ns"].min()
    findings = tuple(
        {name: value for name, value in vars(finding).items() if name != "when"}
        for finding in run.diagnose().findings
    )
    return Trial(numbers, float(whole_ns) / 1e6 / len(numbers), findings)


def whole(recording: Path) -> list[Trial]:
    """All of it at once."""
    return [analysed(recording)]


def each(ask: Ask, recordings: list[Path]) -> dict[Path, list[Trial]]:
    """What is asked of each, in processes of their own, so that none ends the others."""
    trials = {}
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        asked = {recording: pool.submit(ask, recording) for recording in recordings}
        for number, (recording, future) in enumerate(asked.items(), start=1):
            error = future.exception()
            why = f"{type(error).__name__}: {error}"
            trials[recording] = [Trial(failed=why)] if error else future.result()
            progress(f"analysed {number} of {len(asked)}: {recording.name}")
    return trials
