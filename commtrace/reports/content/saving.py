"""What mending a finding would save at most: one sentence, wherever it is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.metrics.run.unrecorded_steps import UNRECORDED_STEP
from commtrace.units import ms, percent

if TYPE_CHECKING:
    from commtrace.diagnosis import Finding, Verdict

__all__ = ["saving", "share_of", "unrecorded_step_ns"]


_HIDDEN = "potential saving: {} before what delays the run more is mended, then up to {} in all"
_HARDLY = 0.1  # of what it saves then


def unrecorded_step_ns(finding: Finding) -> float | None:
    """How long a step takes that nobody records, in the median, if its saving is of such."""
    its = (one.value for one in finding.evidence if one.name == UNRECORDED_STEP)
    return next(its, None)


def share_of(finding: Finding, verdict: Verdict) -> tuple[str, str]:
    """Its saving's share, and of what: of steps that nobody records where the saving is."""
    whole, step_ns = "step time" if verdict.in_steps else "the run", unrecorded_step_ns(finding)
    if step_ns is None:
        return percent(finding.cost_ns, verdict.step_time_ns), whole
    return percent(finding.cost_ns, verdict.steps * step_ns), f"unrecorded {whole}"


def saving(finding: Finding, verdict: Verdict) -> str | None:
    """Per step and in all, with its share; None where the cost is unknown.

    What lies within one step is not shared out among all of them. What others hide saves nothing
    before these are mended.
    """
    hidden_ns = finding.cost_on_top_ns or 0
    if hidden_ns and (finding.cost_ns or 0) < _HARDLY * hidden_ns:
        return _HIDDEN.format("next to none" if finding.cost_ns else "none", ms(hidden_ns))
    if not finding.cost_ns:
        return None
    total, steps = ms(finding.cost_ns), verdict.steps
    share = "({} of {})".format(*share_of(finding, verdict))
    repeats = (finding.end_ns - finding.start_ns) * steps > verdict.step_time_ns
    if steps < 2 or not repeats:
        return f"potential saving: up to {total} in all {share}"
    return f"potential saving: up to {ms(finding.cost_ns / steps)} per step {share}, {total} in all"
