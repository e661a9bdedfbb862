"""The report for machines: the contract, and the JSON Schema that describes it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from commtrace import __version__, comms
from commtrace.analysis import Analysis, Summary
from commtrace.causal.critical_path import CRITICAL_PATH, KINDS
from commtrace.causal.steps import STEP_TIMES, path_of, step_times_by_rank
from commtrace.diagnosis import Finding, Note
from commtrace.matching import CLOCK
from commtrace.metrics.rank.copies import COPIES, copies
from commtrace.metrics.rank.devices import DEVICES, devices
from commtrace.metrics.rank.streams import STREAM_OVERLAP, STREAMS, stream_overlap, streams
from commtrace.metrics.run.collectives import COLLECTIVES, collectives
from commtrace.metrics.run.dimensions import DIMENSIONS, dimensions
from commtrace.metrics.run.group_sizes import DEDUCED
from commtrace.metrics.run.ranges import RANGES, ranges
from commtrace.metrics.run.ranks import RANKS, ranks
from commtrace.metrics.run.waits import OPERATIONS, matched, operations
from commtrace.reports import Look
from commtrace.table import Column, Table, rows

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["SCHEMA_VERSION", "SUFFIX", "render", "schema"]

SUFFIX = ".json"

SCHEMA_VERSION = 1
_ANY = Look()


def _critical_path(run: Measures) -> pd.DataFrame:
    path = path_of(run)
    return CRITICAL_PATH.frame() if path is None else path


_TABLES: tuple[tuple[Table, Callable[[Measures], pd.DataFrame]], ...] = (
    (DEVICES, devices),
    (STREAMS, streams),
    (STREAM_OVERLAP, stream_overlap),
    (COLLECTIVES, collectives),
    (COPIES, copies),
    (RANKS, ranks),
    (DIMENSIONS, dimensions),
    (RANGES, ranges),
    (STEP_TIMES, step_times_by_rank),
    (CRITICAL_PATH, _critical_path),
)
_NEVER_NULL = ("device", "kind", "file", "label")
_VALUES = {
    (STREAMS.name, "kind"): ("compute", "communication", "copy", "mixed"),
    (COPIES.name, "kind"): ("HtoD", "DtoH", "DtoD", "PtoP", "HtoH", None),
    (COLLECTIVES.name, "op"): (*comms.OPERATIONS, None),
    (COLLECTIVES.name, "executed"): (*comms.OPERATIONS, None),
    (OPERATIONS.name, "op"): (*comms.OPERATIONS, None),
    (COLLECTIVES.name, DEDUCED.name): ("groups", "ranks", None),
    (COLLECTIVES.name, "bound"): ("exact", "lower", None),
    (DIMENSIONS.name, "op"): (*comms.OPERATIONS, None),
    (COLLECTIVES.name, "dimension_provenance"): ("named", "inferred", None),
    (CRITICAL_PATH.name, "kind"): KINDS,
    (CRITICAL_PATH.name, "op"): (*comms.OPERATIONS, None),
    (DIMENSIONS.name, "dimension_provenance"): ("named", "inferred", None),
}
_Json = dict[str, Any]


def render(analysis: Analysis, look: Look = _ANY) -> str:
    """The analysis as one JSON object, as ``schema`` describes it. Text is ASCII.

    If ``look.operations``, every operation that was matched across ranks is in it.
    """
    diagnosis, run = analysis.verdict.diagnosis, analysis.measures
    document = {
        "schema_version": SCHEMA_VERSION,
        "commtrace_version": __version__,
        "run": {key: value for key, value in asdict(analysis.run).items() if key != "name"},
        "notes": [asdict(note) for note in analysis.notes],
        **{table.name: rows(measure(run)) for table, measure in _TABLES},
        **({"operations": _operations(run)} if look.operations else {}),
        "clock": rows(matched(run).clock[list(_CLOCK)]),
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "skipped": dict(diagnosis.skipped),
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def schema() -> _Json:
    """The JSON Schema of what ``render`` returns; ``analysis.schema.json`` holds it as text."""
    texts = {"type": "string", "description": "What the rule needs, and lacks."}
    properties = {
        "schema_version": {
            "const": SCHEMA_VERSION,
            "description": "Raised when a field changes its meaning or goes away.",
        },
        "commtrace_version": _field("string", "The version that made this."),
        "run": {"description": "What ran.", **_typed(Summary, "name")},
        "notes": _list("something wrong with a file, or assumed about it", _typed(Note)),
        **{table.name: _rows(table.row, _columns(table)) for table, _ in _TABLES},
        "operations": _rows("an operation on all its ranks; only if asked for", _OPERATION),
        "clock": _rows("one rank's clock against the lowest rank's", _CLOCK),
        "findings": _list(
            "a finding, costliest first, symptoms behind their cause", _typed(Finding, "when")
        ),
        "skipped": {
            "type": "object",
            "description": "Rules that were not checked.",
            "additionalProperties": texts,
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "commtrace analyze --format json",
        "description": "Times are integer nanoseconds, sizes bytes, bandwidths GB/s of 1e9 "
        "bytes; null is what is unknown. `unit` names the unit of each number.",
        **_object(properties),
        "required": [name for name in properties if name != "operations"],
    }


def _finding(finding: Finding) -> _Json:
    return {name: value for name, value in asdict(finding).items() if name != "when"}


def _operations(run: Measures) -> list[_Json]:
    arrivals: dict[int, _Json] = defaultdict(dict)
    ends: dict[int, _Json] = defaultdict(dict)
    waits = matched(run).waits.sort_values("rank", kind="stable")
    for row in rows(waits[["operation", "rank", "arrival_ns", "end_ns"]]):
        arrivals[row["operation"]][str(row["rank"])] = row["arrival_ns"]
        ends[row["operation"]][str(row["rank"])] = row["end_ns"]
    found = operations(run)
    table = rows(found[found["matched_by"].notna()])
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


def _list(row: str, items: _Json) -> _Json:
    return {"type": "array", "description": f"One entry: {row}.", "items": items}


def _typed(kind: type, *left_out: str) -> _Json:
    """A dataclass as the JSON object that ``asdict`` makes of it: every field is there."""
    _, known = msgspec.json.schema_components([kind])
    return _object(
        {
            name: _plain(its, known)
            for name, its in known[kind.__name__]["properties"].items()
            if name not in left_out
        }
    )


def _plain(field: _Json, known: dict[str, _Json]) -> _Json:
    """A field's schema without references, defaults and alternatives that are only null."""
    field = {name: value for name, value in field.items() if name != "default"}
    if reference := field.pop("$ref", None):
        its = known[reference.rpartition("/")[2]]["properties"]
        return _object({name: _plain(value, known) for name, value in its.items()})
    if "items" in field:
        field["items"] = _plain(field["items"], known)
    if "anyOf" in field:
        kinds = [_plain(one, known) for one in field.pop("anyOf")]
        if all("type" in kind for kind in kinds):
            field["type"] = [kind["type"] for kind in kinds]
        else:  # names, or null
            field["enum"] = [*(name for kind in kinds for name in kind.get("enum", ())), None]
    return field


def _object(properties: _Json) -> _Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _rows(row: str, properties: _Json) -> _Json:
    return _list(row, _object(properties))


_CLOCK = _columns(CLOCK, "rank", "offset_ns", "drift_ppm", "error_ns", "provenance")
_OPERATION = {
    **_columns(OPERATIONS, "group", "seq", "op", "size_bytes", "last_rank"),
    "arrival_ns": _times("When each rank arrived, in Unix time on the run's clock."),
    "end_ns": _times("When each rank was done, in Unix time on the run's clock."),
    **_columns(OPERATIONS, "matched_by"),
}
