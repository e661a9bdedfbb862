"""The report for machines: the contract, and the JSON Schema that describes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.analysis import Analysis
from commtrace.causal.critical_path import CRITICAL_PATH
from commtrace.causal.efficiency import EFFICIENCY, SLOWDOWN, efficiency, slowdown
from commtrace.causal.steps import STEP_TIMES, path_of, step_times_by_rank
from commtrace.diagnosis import Note
from commtrace.matching import CLOCK
from commtrace.metrics.rank.copies import COPIES, copies
from commtrace.metrics.rank.devices import DEVICES, devices
from commtrace.metrics.rank.streams import STREAM_OVERLAP, STREAMS, stream_overlap, streams
from commtrace.metrics.run.alike_ranks import ALIKE_RANKS, alike_ranks
from commtrace.metrics.run.collectives import COLLECTIVES, collectives
from commtrace.metrics.run.dimensions import DIMENSIONS, dimensions
from commtrace.metrics.run.ranges import RANGES, ranges
from commtrace.metrics.run.ranks import RANKS, ranks
from commtrace.metrics.run.waits import OPERATIONS, matched, operations
from commtrace.reports import Look
from commtrace.reports.content.open_command import numbered_findings, open_command
from commtrace.reports.json_document import (
    document,
    finding_fields,
    finding_schema,
    one_object,
    run_fields,
    run_schema,
)
from commtrace.reports.json_schema import (
    Json,
    columns,
    field,
    list_of,
    object_of,
    rows_of,
    typed,
)
from commtrace.table import Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SCHEMA_VERSION", "SUFFIX", "render", "schema"]

SUFFIX = ".json"

SCHEMA_VERSION = 1
_ANY = Look()


def _critical_path(run: Measures) -> Rows:
    path = path_of(run)
    return CRITICAL_PATH.of_dicts([]) if path is None else path


_TABLES: tuple[tuple[Table, Callable[[Measures], Rows]], ...] = (
    (DEVICES, devices),
    (STREAMS, streams),
    (STREAM_OVERLAP, stream_overlap),
    (COLLECTIVES, collectives),
    (COPIES, copies),
    (RANKS, ranks),
    (ALIKE_RANKS, alike_ranks),
    (DIMENSIONS, dimensions),
    (RANGES, ranges),
    (STEP_TIMES, step_times_by_rank),
    (CRITICAL_PATH, _critical_path),
    (SLOWDOWN, slowdown),
    (EFFICIENCY, efficiency),
)


def render(analysis: Analysis, look: Look = _ANY) -> str:
    """The analysis as one JSON object, as ``schema`` describes it. Text is ASCII.

    If ``look.operations``, every operation that was matched across ranks is in it.
    """
    diagnosis, run = analysis.verdict.diagnosis, analysis.measures
    answer = {
        "run": run_fields(analysis.run),
        "notes": [asdict(note) for note in analysis.notes],
        **{table.name: measure(run).dicts() for table, measure in _TABLES},
        **({"operations": _operations(run)} if look.operations else {}),
        "clock": [{name: row[name] for name in _CLOCK} for row in matched(run).clock.dicts()],
        "findings": _findings(analysis),
        "skipped": dict(diagnosis.skipped),
    }
    return one_object(SCHEMA_VERSION, answer)


def schema() -> Json:
    """The JSON Schema of what ``render`` returns; ``analysis.schema.json`` holds it as text."""
    texts = {"type": "string", "description": "What the rule needs, and lacks."}
    properties = {
        "run": run_schema(),
        "notes": list_of("something wrong with a file, or assumed about it", typed(Note)),
        **{table.name: rows_of(table.row, columns(table)) for table, _ in _TABLES},
        "operations": rows_of("an operation on all its ranks; only if asked for", _OPERATION),
        "clock": rows_of("one rank's clock against the lowest rank's", _CLOCK),
        "findings": list_of("a finding, costliest first, symptoms behind their cause", _finding()),
        "skipped": {
            "type": "object",
            "description": "Rules that were not checked.",
            "additionalProperties": texts,
        },
    }
    its = document("analyze", SCHEMA_VERSION, properties)
    return {**its, "required": [name for name in its["required"] if name != "operations"]}


def _findings(analysis: Analysis) -> list[Json]:
    numbers = {id(finding): number for number, finding in numbered_findings(analysis.verdict)}
    return [
        finding_fields(finding)
        | {"number": numbers[id(finding)], "open": open_command(analysis, numbers[id(finding)])}
        for finding in analysis.verdict.diagnosis.findings
    ]


def _operations(run: Measures) -> list[Json]:
    arrivals: dict[int, Json] = defaultdict(dict)
    ends: dict[int, Json] = defaultdict(dict)
    waits = matched(run).waits
    for row in waits.some(np.argsort(waits.ints("rank"), kind="stable")).dicts():
        arrivals[row["operation"]][str(row["rank"])] = row["arrival_ns"]
        ends[row["operation"]][str(row["rank"])] = row["end_ns"]
    found = operations(run)
    table = found.take(found.coded("matched_by").known).dicts()
    for row in table:
        row |= {"arrival_ns": arrivals[row["operation"]], "end_ns": ends[row["operation"]]}
    return sorted(({name: row[name] for name in _OPERATION} for row in table), key=_in_order)


def _in_order(row: Json) -> tuple[Any, ...]:
    """By time; what comes at the same time by what it is, however the events were listed."""
    first = min((time for time in row["arrival_ns"].values() if time is not None), default=0)
    seq, size = (-1 if row[name] is None else row[name] for name in ("seq", "size_bytes"))
    return first, list(row["arrival_ns"]), str(row["group"]), str(row["op"]), seq, size


def _times(about: str) -> Json:
    time = field(["integer", "null"], "A rank's time; the name is the rank.", "ns")
    return {"type": "object", "description": about, "unit": "ns", "additionalProperties": time}


def _finding() -> Json:
    """What ``_findings`` makes of one."""
    return object_of(
        {
            **finding_schema()["properties"],
            "number": field("integer", "Its number in the reports for people: symptoms come last."),
            "open": field("string", "The command that shows it in Perfetto."),
        }
    )


_CLOCK = columns(CLOCK, "rank", "offset_ns", "drift_ppm", "error_ns", "provenance")
_OPERATION = {
    **columns(OPERATIONS, "group", "seq", "op", "size_bytes", "last_rank"),
    "arrival_ns": _times("When each rank arrived, in Unix time on the run's clock."),
    "end_ns": _times("When each rank was done, in Unix time on the run's clock."),
    **columns(OPERATIONS, "matched_by"),
}
