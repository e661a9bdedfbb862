"""Whether most events of a run were left out before its files came here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.trace_tables import SAMPLED

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["SAMPLE_LACKS", "is_sampled"]

SAMPLE_LACKS = "needs all events: the files hold only a sample of them"
"""Why what hangs on all of them is not computed."""


def is_sampled(run: Measures) -> bool:
    """Whether any file holds only a sample of its events."""
    return any(note.code == SAMPLED for note in run.notes)
