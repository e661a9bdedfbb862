"""What each dimension of the job's mesh communicated, its groups taken together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.measures import measure
from commtrace.metrics.run.call_kinds import costs, kinds
from commtrace.metrics.run.collectives import COLLECTIVES_BY_DIMENSION
from commtrace.table import Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["DIMENSIONS", "dimensions"]

_KIND = ["dimension", "dimension_provenance", "group_size", "op", "dtype", "size_bytes"]

_COSTS = ("count", "duration_ns_total", "wait_ns_total", "exposed_ns")

DIMENSIONS = Table(
    "dimensions",
    "the operations of one kind in the sibling groups of one dimension: same size of group, "
    "operation, type and size; costliest first",
    COLLECTIVES_BY_DIMENSION.only((*_KIND, "groups", *_COSTS)),
)


@measure
def dimensions(run: Measures) -> Rows:
    """What each dimension communicated, as ``DIMENSIONS``; groups of none are taken together."""
    each = kinds(run, _KIND)
    columns = costs(run, each)
    table = [
        {**row, **dict(zip(columns, its, strict=True))}
        for row, *its in zip(each.rows, *columns.values(), strict=True)
    ]
    return DIMENSIONS.of_dicts(sorted(table, key=_costliest_first))


def _costliest_first(row: dict[str, Any]) -> tuple[Any, ...]:
    return -row["duration_ns_total"], *(str(row[name]) for name in _KIND)
