"""Files that broke off before they said what their times count from.

Kineto writes ``baseTimeNanoseconds`` behind the events: the last quarter of a year of 365.2425
days, since 1970, before its process began. What ranks of one run count from is mostly the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import structs

from commtrace.arrays import NULL
from commtrace.diagnosis import Note
from commtrace.few_bytes import Integers
from commtrace.packed import PackedColumns
from commtrace.reader.recordings import GAP_NS, UNIX_NS, window
from commtrace.table import Columns
from commtrace.trace import RankTrace

__all__ = ["with_lost_bases"]

_QUARTER_NS = 7_889_238 * 10**9
_MOMENTS = frozenset(("start_ns", "end_ns", "launch_ns", "recorded_ns", "at_ns"))


def with_lost_bases(parts: Sequence[RankTrace]) -> list[RankTrace]:
    """The parts, those that broke off on the clock of the others if they fit there, and noted."""
    begins = [when[0] for part in parts if (when := window(part)) and when[0] >= UNIX_NS]
    if not begins:
        return list(parts)
    return [_moved(part, min(begins)) if _is_lost(part) else part for part in parts]


def _is_lost(part: RankTrace) -> bool:
    when = window(part)
    is_cut = any(note.code == "truncated" for note in part.notes)
    return is_cut and when is not None and when[1] < UNIX_NS


def _moved(part: RankTrace, begin_ns: int) -> RankTrace:
    """The part from that quarter, or the one before, in which it begins near the others."""
    start, _ = window(part) or (0, 0)
    last = begin_ns - begin_ns % _QUARTER_NS
    for base in (last, last - _QUARTER_NS):
        if abs(base + start - begin_ns) <= GAP_NS:
            tables = {name: _later(columns, base) for name, columns in part.columns.items()}
            message = (
                "it broke off before baseTimeNanoseconds, which its times count from: took what "
                "Kineto counts from in that quarter"
            )
            note = Note("base-assumed", message, part.rank, str(part.file))
            return structs.replace(part, columns=tables, notes=(*part.notes, note), measured={})
    return part


def _later(columns: Columns, base_ns: int) -> Columns:
    if isinstance(columns, PackedColumns):
        moved = {name: _packed(name, its, base_ns) for name, its in columns.packed.items()}
        return PackedColumns(moved)
    return {name: _values(name, its, base_ns) for name, its in columns.items()}


def _packed(name: str, its: Any, base_ns: int) -> Any:
    if name not in _MOMENTS or not isinstance(its, Integers):
        return its
    return structs.replace(its, base=its.base + base_ns)


def _values(name: str, its: Any, base_ns: int) -> Any:
    return np.where(its == NULL, NULL, its + base_ns) if name in _MOMENTS else its
