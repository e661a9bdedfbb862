"""The report for machines: the contract, and the JSON Schema that describes it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from commtrace import __version__, comms
from commtrace.matching import CLOCK
from commtrace.metrics.rank.copies import COPIES
from commtrace.metrics.rank.devices import DEVICES
from commtrace.metrics.rank.streams import STREAM_OVERLAP, STREAMS
from commtrace.metrics.run.collectives import COLLECTIVES
from commtrace.metrics.run.ranges import RANGES
from commtrace.metrics.run.ranks import RANKS
from commtrace.metrics.run.waits import OPERATIONS
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Finding

__all__ = ["SCHEMA_VERSION", "render", "schema"]

SCHEMA_VERSION = 1

_TABLES = {
    table.name: table
    for table in (DEVICES, STREAMS, STREAM_OVERLAP, COLLECTIVES, COPIES, RANKS, RANGES)
}
_NEVER_NULL = ("device", "kind", "file", "label")
_VALUES = {
    (STREAMS.name, "kind"): ("compute", "communication", "copy", "mixed"),
    (COPIES.name, "kind"): ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", None),
    (COLLECTIVES.name, "op"): (*comms.OPERATIONS, None),
    (COLLECTIVES.name, "executed"): (*comms.OPERATIONS, None),
    (OPERATIONS.name, "op"): (*comms.OPERATIONS, None),
    (COLLECTIVES.name, "bound"): ("exact", "lower", None),
}
_Json = dict[str, Any]


def render(analysis: Analysis, *, operations: bool = False) -> str:
    """The analysis as one JSON object, as ``schema`` describes it. Text is ASCII.

    With ``operations``, every operation that was matched across ranks is in it.
    """
    diagnosis = analysis.verdict.diagnosis
    document = {
        "schema_version": SCHEMA_VERSION,
        "commtrace_version": __version__,
        "run": {key: value for key, value in asdict(analysis.run).items() if key != "name"},
        "notes": [asdict(note) for note in analysis.notes],
        "devices": rows(analysis.devices),
        "streams": rows(analysis.streams),
        "stream_overlap": rows(analysis.stream_overlap),
        "collectives": rows(analysis.collectives),
        **({"operations": _operations(analysis)} if operations else {}),
        "copies": rows(analysis.copies),
        "clock": rows(analysis.clock[list(_CLOCK)]),
        "ranks": rows(analysis.ranks),
        "ranges": rows(analysis.ranges),
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "skipped": dict(diagnosis.skipped),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def schema() -> _Json:
    """The JSON Schema of what ``render`` returns; ``analysis.schema.json`` holds it as text."""
    tables = {name: _rows(table.row, _columns(table)) for name, table in _TABLES.items()}
    texts = {"type": "string", "description": "Why the rule could not look."}
    properties = {
        "schema_version": {
            "const": SCHEMA_VERSION,
            "description": "Raised when a field changes its meaning or goes away.",
        },
        "commtrace_version": _field("string", "The version that made this."),
        "run": {"description": "What ran.", **_object(_RUN)},
        "notes": _rows("something wrong with a file, or assumed about it", _NOTE),
        **{name: tables[name] for name in ("devices", "streams", "stream_overlap")},
        "collectives": tables["collectives"],
        "operations": _rows("an operation on all its ranks; only if asked for", _OPERATION),
        "copies": tables["copies"],
        "clock": _rows("one rank's clock against the lowest rank's", _CLOCK),
        "ranks": tables["ranks"],
        "ranges": tables["ranges"],
        "findings": _rows("a finding, costliest first, symptoms behind their cause", _FINDING),
        "skipped": {
            "type": "object",
            "description": "Rules that could not look.",
            "additionalProperties": texts,
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "commtrace analyze --format json",
        "description": "Times are integer nanoseconds, sizes bytes, bandwidths GB/s of 1e9 "
        "bytes; null is what cannot be told. `unit` names the unit of each number.",
        **_object(properties),
        "required": [name for name in properties if name != "operations"],
    }


def _finding(finding: Finding) -> _Json:
    """The fields that the contract names."""
    return {name: value for name, value in asdict(finding).items() if name in _FINDING}


def _operations(analysis: Analysis) -> list[_Json]:
    arrivals: dict[int, _Json] = defaultdict(dict)
    ends: dict[int, _Json] = defaultdict(dict)
    waits = analysis.waits.sort_values("rank", kind="stable")
    for row in rows(waits[["operation", "rank", "arrival_ns", "end_ns"]]):
        arrivals[row["operation"]][str(row["rank"])] = row["arrival_ns"]
        ends[row["operation"]][str(row["rank"])] = row["end_ns"]
    matched = analysis.operations[analysis.operations["matched_by"].notna()]
    table = rows(matched)
    for row in table:
        row |= {"arrival_ns": arrivals[row["operation"]], "end_ns": ends[row["operation"]]}
    return sorted(({name: row[name] for name in _OPERATION} for row in table), key=_in_order)


def _in_order(row: _Json) -> tuple[Any, ...]:
    """By time; what comes at the same time by what it is, however the events were listed."""
    first = min((time for time in row["arrival_ns"].values() if time is not None), default=0)
    seq, size = (-1 if row[name] is None else row[name] for name in ("seq", "size_bytes"))
    return first, list(row["arrival_ns"]), str(row["group"]), str(row["op"]), seq, size


def _columns(table: Table, *names: str) -> _Json:
    """The table's columns as JSON has them; only those named, if any are."""
    return {
        column.name: _column(table.name, column)
        for column in table.columns
        if not names or column.name in names
    }


def _column(table: str, column: Column) -> _Json:
    kinds = {"int64": "integer", "Int64": "integer", "float64": "number", "category": "string"}
    kind = kinds[column.dtype]
    if (table, column.name) in _VALUES:
        values = list(_VALUES[table, column.name])
        return {"enum": values, "description": column.about}
    null = column.dtype != "int64" and column.name not in _NEVER_NULL
    return _field([kind, "null"] if null else kind, column.about, column.unit)


def _field(kind: str | list[str], about: str, unit: str | None = None) -> _Json:
    return {"type": kind, "description": about, **({"unit": unit} if unit else {})}


def _times(about: str) -> _Json:
    time = _field(["integer", "null"], "A rank's time; the name is the rank.", "ns")
    return {"type": "object", "description": about, "unit": "ns", "additionalProperties": time}


def _list(kind: str, about: str, what: str) -> _Json:
    return {"type": "array", "description": about, "items": _field(kind, what)}


def _object(properties: _Json) -> _Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _rows(row: str, properties: _Json) -> _Json:
    about = f"One entry: {row}."
    return {"type": "array", "description": about, "items": _object(properties)}


_RUN = {
    "world_size": _field(
        ["integer", "null"], "Ranks in the job; null where no trace tells.", "ranks"
    ),
    "ranks": _list("integer", "The ranks whose traces are here, ascending.", "A rank."),
    "missing_ranks": _list("integer", "The ranks of the job whose traces are not.", "A rank."),
    "backends": _list("string", "What communicates.", "gloo, nccl, …"),
    "devices": _list("string", "The devices that did any work.", "torch's name: `cuda:0`, `cpu`."),
    "hosts": _list("string", "The hosts that the traces name.", "A host's name."),
    "span_ns": _field("integer", "First start to last end in the longest trace.", "ns"),
    "steps": _field("integer", "Different profiler steps.", "steps"),
}
_NOTE = {
    "code": _field("string", "What it is, as in `truncated` or `missing-rank`."),
    "message": _field("string", "One line that says it."),
    "rank": _field(["integer", "null"], "The rank that it is about; null if none alone."),
    "file": _field(["string", "null"], "The file that it is about; null if none alone."),
}
_CLOCK = _columns(CLOCK, "rank", "offset_ns", "drift_ppm", "error_ns", "provenance")
_OPERATION = {
    **_columns(OPERATIONS, "group", "seq", "op", "size_bytes", "last_rank"),
    "arrival_ns": _times("When each rank arrived, in Unix time on the run's clock."),
    "end_ns": _times("When each rank was done, in Unix time on the run's clock."),
    **_columns(OPERATIONS, "matched_by"),
}
_EVIDENCE = {
    "name": _field("string", "What was measured."),
    "value": _field("number", "The measurement, in `unit`."),
    "unit": _field("string", "The unit of value and threshold."),
    "threshold": _field(["number", "null"], "What it was held against, in `unit`."),
}
_FINDING = {
    "rule": _field("string", "The rule's name, in kebab-case."),
    "summary": _field("string", "One line that says it."),
    "ranks": _list("integer", "The culprits, not everyone affected.", "A rank."),
    "streams": _list("integer", "The streams concerned, where that matters.", "A stream."),
    "start_ns": _field("integer", "Where it starts, in Unix time.", "ns"),
    "end_ns": _field("integer", "Where it ends, in Unix time.", "ns"),
    "cost_ns": _field("integer", "Time recoverable at most.", "ns"),
    "evidence": _rows("one measured number behind the finding", _EVIDENCE),
    "ruled_out": _list("string", "What else it could have been, and is not.", "A confounder."),
    "advice": _field("string", "What to do."),
    "confidence": {"enum": ["high", "medium", "low"], "description": "How sure it is."},
    "explained_by": _field(
        ["string", "null"], "The rule whose finding this one is a symptom of, if any."
    ),
    "place": _field(
        ["string", "null"],
        "The innermost of the program's own labels (`record_function`) that nine tenths of it "
        "lie in; null if no single one.",
    ),
}
