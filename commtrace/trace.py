"""One recording as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commtrace.diagnosis import Note

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """One recording: the traces of its ranks as tables, described in ``schema``.

    Tables are shared, never copied: do not change them in place. ``manifest`` is what
    ``commtrace record`` wrote beside the traces, or None for anybody else's; its
    ``clock_probe`` lists dicts of ``rank``, ``at_ns`` (on that rank's clock), ``offset_ns``
    (to subtract from the rank's times to reach rank 0's) and ``error_ns`` (the true offset is
    no further off), normally one before and one behind the window; a recording may lack it.
    ``notes`` says what was wrong with the files, and what had to be assumed. ``pauses`` are
    the starts and ends of the times in which a rank was not recorded, between the cycles of a
    profiler's schedule.
    """

    kernels: pd.DataFrame
    copies: pd.DataFrame
    collectives: pd.DataFrame
    ops: pd.DataFrame
    steps: pd.DataFrame
    groups: pd.DataFrame
    ranks: pd.DataFrame
    probes: pd.DataFrame
    notes: tuple[Note, ...] = ()
    manifest: Mapping[str, Any] | None = None
    pauses: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def paused_ns(self, rank: int, start_ns: int, end_ns: int) -> int:
        """How much of a span a rank was not recorded."""
        return sum(
            max(0, min(end, end_ns) - max(start, start_ns))
            for start, end in self.pauses.get(rank, ())
        )
