"""One recording of a program, and what its analysis says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.programs.truth import Program
from commtrace import load
from commtrace.rules import RULES

__all__ = ["Trial", "tried"]

ROOT = Path(__file__).parent.parent.parent

Finding = Mapping[str, Any]


@dataclass(frozen=True)
class Trial:
    """How long a step took, and the findings as JSON has them; or why there are none."""

    steps: int = 0
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
        return self.first["cost_ns"] / 1e6 / self.steps if self.first else None


def tried(program: Program, fault: str, out: Path, timeout_s: float) -> Trial:
    """Record and analyse it as a user does, with no option but the number of ranks."""
    command = ["record", "-n", str(program.world_size), "-o", str(out)]
    try:
        _commtrace(*command, "--", str(program.path), "--fault", fault, timeout_s=timeout_s)
        said = json.loads(_commtrace("analyze", "--format", "json", str(out), timeout_s=timeout_s))
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return Trial(failed=_reason(error))
    steps = load(out, workers=1).steps
    steps = steps[steps["label"].isna()]
    count = steps["step"].nunique()
    if not count:
        return Trial(failed="no steps were recorded")
    whole_ns = (steps["start_ns"] + steps["duration_ns"]).max() - steps["start_ns"].min()
    return Trial(count, float(whole_ns) / 1e6 / count, tuple(said["findings"]))


def _commtrace(*arguments: str, timeout_s: float) -> str:
    """Its standard output. Out of time, it is asked to end, which ends its ranks, too."""
    command = [sys.executable, "-m", "commtrace", *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except BaseException:
            child.terminate()
            raise
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, out, err)
    return out


def _reason(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"more than {error.timeout:.0f} s"
    lines = [line for line in (error.stderr or "").splitlines() if line.startswith("commtrace:")]
    return (lines or [f"exit status {error.returncode}"])[-1][:160]
