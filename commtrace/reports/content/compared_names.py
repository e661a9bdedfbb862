"""What the rows of a comparison's tables are called."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from commtrace.arrays import NULL
from commtrace.reports.content.critical_path import CAUSE_NAMES
from commtrace.units import clean, cut, size

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared
    from commtrace.table import Rows

__all__ = ["kernel_of", "name_of", "operation_of", "rows_of", "work_of"]

_KINDS = {
    "host": "host without operators",
    "copy": "copies",
    "communication": "exposed communication",
}


def name_of(row: dict[str, Any]) -> str:
    """What a row of ``changes`` is about."""
    if row["kind"] in ("transfer", "launch"):
        return f"{operation_of(row)}: {row['kind']}"
    what = CAUSE_NAMES.get(row["cause"] or "", _KINDS.get(row["kind"], row["kind"]))
    who = "all ranks" if row["rank"] is None else f"rank {row['rank']}"
    return f"{who}: {what}"


def operation_of(row: dict[str, Any]) -> str:
    """An operation, its dimension and size."""
    of = f" of {clean(row['dimension'], 16)}" if row["dimension"] else ""
    before = f"{_size(row['base_size_bytes'], row)} → " if row["base_size_bytes"] else ""
    big = f", {before}{_size(row['size_bytes'], row)}" if row["size_bytes"] else ""
    return f"{clean(row['op'], 16) if row['op'] else 'communication'}{of}{big}"


def _size(size_bytes: int, row: dict[str, Any]) -> str:
    return f"{size_bytes:,} bytes" if size_bytes in row["alike"] else size(size_bytes)


def rows_of(compared: Compared, table: Rows) -> list[dict[str, Any]]:
    """A table's rows, and in each the sizes that look ``alike`` when they are rounded."""
    both = (compared.operations.ints(name) for name in ("size_bytes", "base_size_bytes"))
    sizes = {its for column in both for its in column[column != NULL].tolist()}
    texts = Counter(map(size, sizes))
    alike = {its for its in sizes if texts[size(its)] > 1}
    return [{**row, "alike": alike} for row in table.dicts()]


def work_of(row: dict[str, Any]) -> str:
    """A kernel or operator, and the shapes that it works on, if they are known."""
    before = f"{_shape(row['base_shape'])} → " if row["base_shape"] else ""
    shape = f" {before}{_shape(row['shape'])}" if row["shape"] else ""
    return f"{kernel_of(row, 60)}{shape}"


def kernel_of(row: dict[str, Any], letters: int) -> str:
    """A kernel or operator, in at most so many letters."""
    return cut(clean(row["kernel"], 1_000), letters)


def _shape(text: str) -> str:
    """Shapes as people write them; those without sizes are scalars, and left out.

    >>> _shape("[[64,4096],[4096],[]]")
    '64×4096, 4096'
    """
    sizes = re.findall(r"[0-9]+(?:,[0-9]+)*", text)
    return cut(", ".join(its.replace(",", "×") for its in sizes), 40)
