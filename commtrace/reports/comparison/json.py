"""A comparison for machines: the contract, and the JSON Schema that describes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from commtrace.analysis import Summary
from commtrace.comparing.compared import VERDICTS, StepChange
from commtrace.comparing.gate import Gate
from commtrace.comparing.tables import CHANGES, COUNTS, OUTLYING, RANKS, WORK
from commtrace.diagnosis import Note
from commtrace.reports import Look
from commtrace.reports.json_document import document, finding_fields, finding_schema, one_object
from commtrace.reports.json_schema import (
    Json,
    columns,
    field,
    list_of,
    object_of,
    rows_of,
    typed,
)

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
        "base": [asdict(run) for run in compared.base],
        "candidate": [asdict(run) for run in compared.candidate],
        "verdict": compared.verdict,
        "why": compared.why,
        "gate_pct": gate.pct,
        "gate_failed": gate.failed(compared),
        "step": asdict(compared.step),
        "changes": compared.changes.dicts(),
        "rest_ns": compared.rest_ns,
        "appeared": compared.appeared.dicts(),
        "disappeared": compared.disappeared.dicts(),
        "operations": compared.operations.dicts(),
        "kernels": compared.kernels.dicts(),
        "ranks": compared.ranks.dicts(),
        "outlying_steps": compared.outlying.dicts(),
        "findings": {
            kind: [finding_fields(its) for its in getattr(compared.findings, kind)]
            for kind in _KINDS
        },
        "notes": [asdict(note) for note in compared.notes],
    }
    return one_object(SCHEMA_VERSION, answer)


def schema() -> Json:
    """The JSON Schema of what ``render`` returns; ``compare.schema.json`` holds it as text."""
    return document(
        "compare",
        SCHEMA_VERSION,
        {
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
                        "new": list_of("a finding that only the candidate has", finding_schema()),
                        "resolved": list_of("a finding that only the base has", finding_schema()),
                        "remaining": list_of(
                            "a finding of both, the candidate's", finding_schema()
                        ),
                    }
                ),
            },
            "notes": list_of("what else differs, or disturbed a recording", typed(Note)),
        },
    )
