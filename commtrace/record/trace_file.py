"""The trace of a program's rank as a file: its events, and what else is known of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from commtrace.record import profile
from commtrace.record.labels import are_checkpoints_labelled
from commtrace.record.own_profiler import Written
from commtrace.record.profiler import Profiler
from commtrace.record.rank_agreement import Meeting

__all__ = ["TraceFile"]

_ADOPTED = "the program ran a profiler of its own: this is what it wrote last, and no other steps"
_NO_GROUP = "the program has no process group: rank and world size as it was started"
_KEPT = ("backend", "steps", "seconds", "machine", "own_profiler", "notes")


class TraceFile:
    """One rank's, written once; ``facts`` are what is known before.

    ``written`` is called with clocks' readings and other facts once it is there, and whether the
    program is ``over``.
    """

    def __init__(
        self,
        path: Path,
        facts: Mapping[str, Any],
        written: Callable[[Meeting, dict[str, Any]], object],
    ) -> None:
        self._path, self._facts, self._written = path, facts, written
        self._remembered: dict[str, Any] | None = None

    def remember(self, since_ns: int) -> None:
        """The default group is about to go: keep what only it tells."""
        self._remembered = _run(since_ns)

    def discard(self) -> None:
        """Remove what was written."""
        self._path.unlink(missing_ok=True)

    def save(
        self,
        profiler: Profiler,
        meeting: Meeting,
        steps: Sequence[int | None] | None,
        notes: Sequence[str],
        why_partial: str | None,
        *,
        over: bool,
    ) -> None:
        """Write what the profiler recorded. Raises RecordError, as :func:`profile.export` does."""
        facts = {
            "steps": steps,
            "seconds": round(profiler.recorded_s, 6),
            **profiler.extras.facts(),
        }
        since_ns = profiler.began_ns
        self._write(profiler.export, facts, since_ns, meeting, notes, why_partial, over=over)

    def adopt(self, its: Written, meeting: Meeting, why_partial: str | None) -> None:
        """Write what the program's own profiler wrote. Raises RecordError, as ``save`` does."""
        facts = {
            "steps": None,
            "seconds": round((its.ended_ns - its.began_ns) / 1e9, 6),
            "carries": ["checkpoint"] if are_checkpoints_labelled() else [],
            "machine": its.machine,
            "own_profiler": True,
        }
        copy = partial(profile.adopt, its.path)
        self._write(copy, facts, its.began_ns, meeting, [_ADOPTED], why_partial, over=True)

    def _write(
        self,
        export: Callable[..., None],
        found: Mapping[str, Any],
        since_ns: int,
        meeting: Meeting,
        notes: Sequence[str],
        why_partial: str | None,
        *,
        over: bool,
    ) -> None:
        meeting.close()
        run = _run(since_ns)
        if run["backend"] is None:
            run = self._remembered or run
        all_notes = [*notes, *([_NO_GROUP] if run["backend"] is None else []), *meeting.notes]
        facts = {**run, **self._facts, **found, "notes": all_notes}
        probed = [reading.to_dict() for reading in meeting.readings]
        with profile.unstoppable():
            export(self._path, {**facts, "clock_probe": probed}, partial=why_partial)
        kept = {name: facts[name] for name in _KEPT if name in facts}
        if machine := kept.get("machine"):  # its lines are many
            kept["machine"] = {name: its for name, its in machine.items() if name != "lines"}
        self._written(meeting, {**kept, "over": over})


def _run(since_ns: int) -> dict[str, Any]:
    """Who this rank is, and what it has communicated since."""
    return {**profile.whereabouts(), **profile.communication(since_ns)}
