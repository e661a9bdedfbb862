"""Whether the first finding is the fault, and what of a clean recording is a false alarm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from benchmarks.programs.program import Fault, Program
from benchmarks.programs.trial import Finding, Trial

__all__ = ["Judged", "false_alarms", "short"]

_REFINED = ("host-late", "device-late")
"""What a straggler's finding brings along: why it is late."""


@dataclass
class Judged:
    """The recordings of a program with one of its faults, and without, which all its share."""

    program: Program
    fault: Fault
    clean: list[Trial]
    faulty: list[Trial] = field(default_factory=list)

    @property
    def done(self) -> list[Trial]:
        """The recordings in which the fault happened, and that can be judged."""
        return [
            trial for trial in self.faulty if not trial.failed and self.fault.happens(trial.steps)
        ]

    def rule(self, trial: Trial) -> bool:
        """Whether the first finding is of the right rule."""
        rules = self.fault.within(trial.steps).rules
        if not rules:
            return self._nobody(trial.first)
        return trial.first is not None and trial.first["rule"] in rules

    def ranks(self, trial: Trial) -> bool:
        """Whether the first finding blames the right ranks, or nobody where nobody is to blame."""
        ranks = self.fault.within(trial.steps).ranks
        if not ranks:
            return self._nobody(trial.first)
        return trial.first is not None and tuple(trial.first["ranks"]) == ranks

    def _nobody(self, first: Finding | None) -> bool:
        return first is None or not _blames(first, self.program)

    def right(self, trial: Trial) -> bool:
        """Both."""
        return self.rule(trial) and self.ranks(trial)

    def misled(self, trial: Trial) -> bool:
        """Whether the first finding blames the wrong ranks, and is sure of it."""
        first = trial.first
        return first is not None and _accuses(first, self.program) and not self.ranks(trial)

    def place(self, trial: Trial) -> bool | None:
        """Whether the right finding names the place; None where there is none to name."""
        if not (self.fault.place and trial.first and self.right(trial)):
            return None
        told = [trial.first.get(key) for key in ("place", "label", "summary", "advice")]
        text = " ".join(str(part) for part in told if part)
        return re.search(rf"\b{self.fault.place}s?\b", text) is not None

    def cause(self, trial: Trial) -> bool | None:
        """Whether the right finding has a right cause; None where there is none to judge."""
        first = trial.first
        if not (self.fault.causes and first and "cause" in first and self.right(trial)):
            return None
        return first["cause"] in self.fault.causes

    @property
    def injected_ms(self) -> float | None:
        """What the fault delays each of the recorded steps by, if that is known: the median."""
        delays = [self.fault.mean_delay_ms(trial.steps) for trial in self.done]
        known = [each for each in delays if each is not None]
        return median(known) if known else None

    @property
    def gained_ms(self) -> float | None:
        """How much longer a step is with the fault: medians of the rounds."""
        clean = [trial.step_ms for trial in self.clean if not trial.failed]
        faulty = [trial.step_ms for trial in self.done]
        return median(faulty) - median(clean) if clean and faulty else None

    @property
    def predicted_ms(self) -> float | None:
        """What the right findings promise for each step: the median."""
        promised = [trial.predicted_ms for trial in self.done if self.right(trial)]
        known = [each for each in promised if each is not None]
        return median(known) if known else None

    def error(self, true_ms: float | None) -> float | None:
        """What is promised against what is true, less 1; None where nothing was to be had."""
        predicted = self.predicted_ms
        if predicted is None or true_ms is None or true_ms <= 0:
            return None
        return predicted / true_ms - 1


def false_alarms(trial: Trial, program: Program) -> Iterator[Finding]:
    """Findings of a clean recording that blame some of the ranks, and are sure of it."""
    right = {*program.always, *(_REFINED if "straggler" in program.always else ())}
    for finding in trial.findings:
        if _accuses(finding, program) and finding["rule"] not in right:
            yield finding


def _accuses(finding: Finding, program: Program) -> bool:
    return finding["confidence"] in ("medium", "high") and _blames(finding, program)


def _blames(finding: Finding, program: Program) -> bool:
    return 0 < len(set(finding["ranks"])) < program.world_size


def short(finding: Finding | None) -> str:
    """A finding for a table's cell."""
    if finding is None:
        return "nothing"
    ranks = ",".join(map(str, finding["ranks"]))
    return f"{finding['rule']}{f' of {ranks}' if ranks else ''} ({finding['confidence']})"
