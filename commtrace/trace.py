"""One rank's trace as numpy columns, with its notes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commtrace.diagnosis import Note
from commtrace.table import Columns

__all__ = ["RankTrace"]


@dataclass(frozen=True)
class RankTrace:
    """What one file adds to a Trace: columns by table, notes with rank and file.

    ``provenance`` says where the rank is known from, as ``kineto.identify`` does.
    """

    file: Path
    rank: int
    provenance: str
    columns: dict[str, Columns]
    notes: tuple[Note, ...]
