"""Records one workload and says how long it took, and what the diagnosis says of it."""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from commtrace import load
from commtrace.diagnosis import Finding
from commtrace.record import record
from commtrace.rules import RULES
from commtrace.run import Run

__all__ = ["WORKLOADS", "Recorded", "analysed", "measured", "progress", "recording"]

WORKLOADS = Path(__file__).parent / "workloads"


@dataclass(frozen=True)
class Recorded:
    """One recording: how long each step took on its slowest rank, and what was found."""

    steps_ms: list[float]
    findings: tuple[Finding, ...]

    @property
    def step_ms(self) -> float:
        """The median step."""
        return statistics.median(self.steps_ms)

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The findings that are faults, and no other's symptom."""
        return tuple(f for f in self.findings if not f.explained_by and not RULES[f.rule].good_news)


def recording(workload: str, settings: Mapping[str, str], world_size: int, out: Path) -> Run:
    """Record one of the workloads beside this file, and read it."""
    path = str(WORKLOADS / f"{workload}.py")
    return load(
        record(path, settings=settings, world_size=world_size, backend="gloo", out=out), workers=1
    )


def measured(workload: str, settings: Mapping[str, str], world_size: int) -> Recorded:
    """Record it somewhere and keep nothing but the numbers."""
    with tempfile.TemporaryDirectory() as folder:
        return analysed(recording(workload, settings, world_size, Path(folder, "recording")))


def analysed(run: Run) -> Recorded:
    """The numbers of a recording."""
    steps = run.steps[run.steps["label"].isna()]
    slowest_ns = steps.groupby("step")["duration_ns"].max()
    return Recorded([ns / 1e6 for ns in slowest_ns.tolist()], run.diagnose().findings)


def progress(text: str) -> None:
    """What is being done, for who waits; the results alone go to standard output."""
    print(text, file=sys.stderr, flush=True)
