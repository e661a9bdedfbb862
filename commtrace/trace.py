"""One rank's trace as numpy columns, with its notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct

from commtrace.diagnosis import Note
from commtrace.machine import Machine
from commtrace.table import Columns

__all__ = ["PACKED", "RankTrace"]

PACKED = ("kernels", "copies", "blocking_calls", "synchronisations", "host_operators")
"""The tables of a rank that may have millions of rows: they are packed where they are made."""


class RankTrace(Struct, frozen=True):
    """What one file adds to a Trace: columns by table, notes with rank and file.

    Those of ``PACKED`` are ``packed.PackedColumns``.
    ``provenance`` says where the rank is known from, as ``kineto.identify`` does; ``machine`` is
    what the recorder noted of the rank's machine. ``measured`` is what the process that read it
    found by measures of the rank alone, by their names: Columns, or ``measures.Sealed`` ones.
    """

    file: Path
    rank: int
    provenance: str
    columns: dict[str, Columns]
    notes: tuple[Note, ...]
    machine: Machine | None = None
    measured: dict[str, Any] = {}
