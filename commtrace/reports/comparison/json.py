"""A comparison for machines: the contract, and the JSON Schema that describes it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commtrace import __version__
from commtrace.analysis import Summary
from commtrace.comparing.compared import VERDICTS, StepChange
from commtrace.comparing.gate import Gate
from commtrace.comparing.tables import CHANGES, COUNTS, OUTLYING, RANKS, WORK
from commtrace.diagnosis import Finding, Note
from commtrace.reports import Look
from commtrace.reports.json_schema import (
    Json,
    columns,
    document,
    field,
    list_of,
    object_of,
    rows_of,
    typed,
)
from commtrace.table import rows

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SCHEMA_VERSION", "SUFFIX", "render", "schema"]

SUFFIX = ".json"
SCHEMA_VERSION = 1
_ANY, _NONE = Look(), Gate()
_KINDS = ("new", "resolved", "remaining")


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:  # noqa: ARG001 - all of it
    """The comparison as one JSON object, as ``schema`` describes it. Text is ASCII."""
    answer = {
        "schema_version": SCHEMA_VERSION,
        "commtrace_version": __version__,
        "base": [_run(run) for run in compared.base],
        "candidate": [_run(run) for run in compared.candidate],
        "verdict": compared.verdict,
        "why": compared.why,
        "gate_pct": gate.pct,
        "gate_failed": gate.failed(compared),
        "step": asdict(compared.step),
        "changes": rows(compared.changes),
        "rest_ns": compared.rest_ns,
        "appeared": rows(compared.appeared),
        "disappeared": rows(compared.disappeared),
        "operations": rows(compared.operations),
        "kernels": rows(compared.kernels),
        "ranks": rows(compared.ranks),
        "outlying_steps": rows(compared.outlying),
        "findings": {
            kind: [_finding(its) for its in getattr(compared.findings, kind)] for kind in _KINDS
        },
        "notes": [asdict(note) for note in compared.notes],
    }
    return json.dumps(answer, indent=1, allow_nan=False) + "\n"


def _run(run: Summary) -> dict[str, Any]:
    return asdict(run)


def _finding(finding: Finding) -> dict[str, Any]:
    return {name: value for name, value in asdict(finding).items() if name != "when"}


def schema() -> Json:
    """The JSON Schema of what ``render`` returns; ``compare.schema.json`` holds it as text."""
    return document(
        "compare",
        {
            "schema_version": {
                "const": SCHEMA_VERSION,
                "description": "Raised when a field changes its meaning or goes away.",
            },
            "commtrace_version": field("string", "The version that made this."),
            "base": list_of("a recording of the base", typed(Summary)),
            "candidate": list_of("a recording of the candidate", typed(Summary)),
            "verdict": {"enum": list(VERDICTS), "description": "Whether a step takes longer."},
            "why": field("string", "Why the verdict is no other."),
            "gate_pct": field(["number", "null"], "The gate that was asked for.", "percent"),
            "gate_failed": field(["string", "null"], "Why the gate fails; null if it does not."),
            "step": {
                "description": "The mean of the steps that count, and what it changed by.",
                **typed(StepChange),
            },
            "changes": rows_of(CHANGES.row, columns(CHANGES)),
            "rest_ns": field("integer", "What the changes do not sum to.", "ns"),
            "appeared": rows_of(f"only in the candidate, {COUNTS.row}", columns(COUNTS)),
            "disappeared": rows_of(f"only in the base, {COUNTS.row}", columns(COUNTS)),
            "operations": rows_of(COUNTS.row, columns(COUNTS)),
            "kernels": rows_of(WORK.row, columns(WORK)),
            "ranks": rows_of(RANKS.row, columns(RANKS)),
            "outlying_steps": rows_of(OUTLYING.row, columns(OUTLYING)),
            "findings": {
                "description": "By rule and ranks.",
                **object_of(
                    {
                        "new": list_of("a finding that only the candidate has", _FINDING),
                        "resolved": list_of("a finding that only the base has", _FINDING),
                        "remaining": list_of("a finding of both, the candidate's", _FINDING),
                    }
                ),
            },
            "notes": list_of("what else differs, or disturbed a recording", typed(Note)),
        },
    )


_FINDING = typed(Finding, "when")
