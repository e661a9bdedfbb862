"""What the JSON of every command shares: its versions, findings, and the schema around it."""

from __future__ import annotations

import json
from dataclasses import asdict

from commtrace import __version__
from commtrace.analysis import Summary
from commtrace.diagnosis import Finding
from commtrace.reports.json_schema import Json, field, object_of, typed

__all__ = [
    "document",
    "finding_fields",
    "finding_schema",
    "one_object",
    "run_fields",
    "run_schema",
]

_HIDDEN = ("when", "operations", "weighs_ns", "behind", "by_itself", "spares_memory", "explains")


def finding_schema() -> Json:
    """The schema of ``finding_fields``."""
    return typed(Finding, *_HIDDEN)


def run_schema() -> Json:
    """The schema of ``run_fields``."""
    return {"description": "What ran.", **typed(Summary, "name")}


def run_fields(run: Summary) -> Json:
    """What ran, without the name that the reader gave."""
    return {name: value for name, value in asdict(run).items() if name != "name"}


def finding_fields(finding: Finding) -> Json:
    """A finding, without the prose that says when."""
    return {name: value for name, value in asdict(finding).items() if name not in _HIDDEN}


def one_object(version: int, values: Json) -> str:
    """One JSON object, versions first. Text is ASCII."""
    versions = {"schema_version": version, "commtrace_version": __version__}
    return json.dumps({**versions, **values}, indent=1, allow_nan=False) + "\n"


def document(command: str, version: int, properties: Json) -> Json:
    """The schema of what ``one_object`` makes of a command's values."""
    versions = {
        "schema_version": {
            "const": version,
            "description": "Raised when a field changes its meaning or goes away.",
        },
        "commtrace_version": field("string", "The version that made this."),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"commtrace {command} --format json",
        "description": "Times are integer nanoseconds, sizes bytes, bandwidths GB/s of 1e9 "
        "bytes; null is what is unknown. `unit` names the unit of each number.",
        **object_of({**versions, **properties}),
    }
