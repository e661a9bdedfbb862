"""JSON Schemas made from the tables' columns and from dataclasses."""

from __future__ import annotations

from typing import Any

import msgspec

from commtrace import comms
from commtrace.causal.critical_path import CRITICAL_PATH, KINDS
from commtrace.causal.efficiency import SLOWDOWN
from commtrace.comparing.tables import CHANGES, COUNTS, OUTLYING
from commtrace.metrics.rank.copies import COPIES
from commtrace.metrics.rank.streams import STREAMS
from commtrace.metrics.run.alike_ranks import ALIKE_RANKS, PARTS
from commtrace.metrics.run.collectives import COLLECTIVES
from commtrace.metrics.run.dimensions import DIMENSIONS
from commtrace.metrics.run.group_sizes import DEDUCED
from commtrace.metrics.run.waits import OPERATIONS
from commtrace.table import Column, Table

__all__ = ["Json", "columns", "field", "list_of", "object_of", "rows_of", "typed"]

Json = dict[str, Any]
_NEVER_NULL = ("by", "device", "edit", "file", "kind", "label")
_PARTS = ("compute", "copy", "host", "transfer", "launch", "communication", "idle")
_CAUSES = ("loader", "checkpoint", "garbage-collection")
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
    (ALIKE_RANKS.name, "differs_in"): (*(p.removesuffix("_ns") for p in PARTS), None),
    (CRITICAL_PATH.name, "kind"): KINDS,
    (CRITICAL_PATH.name, "op"): (*comms.OPERATIONS, None),
    (DIMENSIONS.name, "dimension_provenance"): ("named", "inferred", None),
    (SLOWDOWN.name, "by"): ("run", "rank", "host", "stage", "op"),
    (SLOWDOWN.name, "op"): (*comms.OPERATIONS, None),
    (CHANGES.name, "kind"): _PARTS,
    (CHANGES.name, "cause"): (*_CAUSES, None),
    (CHANGES.name, "op"): (*comms.OPERATIONS, None),
    (COUNTS.name, "op"): (*comms.OPERATIONS, None),
    (OUTLYING.name, "side"): ("base", "candidate"),
    (OUTLYING.name, "reason"): ("warm-up", "outlying"),
    (OUTLYING.name, "kind"): (*_PARTS, None),
    (OUTLYING.name, "cause"): (*_CAUSES, None),
    (OUTLYING.name, "op"): (*comms.OPERATIONS, None),
}


def columns(table: Table, *names: str) -> Json:
    """The table's columns as JSON has them; only those named, if any are."""
    return {
        column.name: _column(table.name, column)
        for column in table.columns
        if not names or column.name in names
    }


def _column(table: str, column: Column) -> Json:
    kinds = {"int64": "integer", "Int64": "integer", "float64": "number", "category": "string"}
    kind = kinds[column.dtype]
    if (table, column.name) in _VALUES:
        values = list(_VALUES[table, column.name])
        return {"enum": values, "description": column.about}
    null = column.dtype != "int64" and column.name not in _NEVER_NULL
    return field([kind, "null"] if null else kind, column.about, column.unit)


def field(kind: str | list[str], about: str, unit: str | None = None) -> Json:
    """One value of plain kinds."""
    return {"type": kind, "description": about, **({"unit": unit} if unit else {})}


def list_of(row: str, items: Json) -> Json:
    """A list, and what one of its entries is."""
    return {"type": "array", "description": f"One entry: {row}.", "items": items}


def typed(kind: type, *left_out: str) -> Json:
    """A dataclass as the JSON object that ``asdict`` makes of it: every field is there."""
    _, known = msgspec.json.schema_components([kind])
    return object_of(
        {
            name: _plain(its, known)
            for name, its in known[kind.__name__]["properties"].items()
            if name not in left_out
        }
    )


def _plain(its: Json, known: dict[str, Json]) -> Json:
    """A field's schema without references, defaults and alternatives that are only null."""
    field = {name: value for name, value in its.items() if name != "default"}
    if reference := field.pop("$ref", None):
        parts = known[reference.rpartition("/")[2]]["properties"]
        return object_of({name: _plain(value, known) for name, value in parts.items()})
    if "items" in field:
        field["items"] = _plain(field["items"], known)
    if "anyOf" in field:
        kinds = [_plain(one, known) for one in field.pop("anyOf")]
        if all("type" in kind for kind in kinds):
            field["type"] = [kind["type"] for kind in kinds]
        else:  # names, or null
            field["enum"] = [*(name for kind in kinds for name in kind.get("enum", ())), None]
    return field


def object_of(properties: Json) -> Json:
    """An object with all of these, and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def rows_of(row: str, properties: Json) -> Json:
    """A table: a list of objects."""
    return list_of(row, object_of(properties))
