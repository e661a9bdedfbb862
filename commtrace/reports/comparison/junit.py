"""A comparison as JUnit's XML: one test, which fails as the gate does."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from commtrace.comparing.gate import Gate
from commtrace.reports import Look
from commtrace.reports.comparison import text
from commtrace.reports.content import comparison

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SUFFIX", "render"]

SUFFIX = ".xml"
_ANY, _NONE = Look(), Gate()


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:
    """Failed as the gate is; skipped where it is inconclusive and the gate lets it pass."""
    failure = gate.failed(compared)
    skipped = failure is None and compared.verdict == "inconclusive"
    seconds = (compared.step.candidate_ns or 0) / 1e9
    outcome = ""
    if failure is not None:
        details = escape(text.render(compared, gate, look))
        outcome = f"<failure message={quoteattr(failure)}>{details}</failure>"
    elif skipped:
        outcome = f"<skipped message={quoteattr(compared.why)}/>"
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<testsuite name="commtrace compare" tests="1" failures="{int(failure is not None)}" '
        f'errors="0" skipped="{int(skipped)}" time="{seconds:.6f}">\n'
        f"<testcase classname={quoteattr(comparison.title(compared))} "
        f'name="step time" time="{seconds:.6f}">{outcome}'
        f"<system-out>{escape(comparison.headline(compared))}</system-out></testcase>\n"
        "</testsuite>\n"
    )
