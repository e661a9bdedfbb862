"""Files into one run: whose ranks they are, and what is left out or missing."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtrace.diagnosis import Note
from commtrace.errors import TraceError
from commtrace.reader.recordings import fact, recordings, same, window
from commtrace.trace import RankTrace
from commtrace.trace_tables import FAILED, LEFT_OUT, MISSING_RANK
from commtrace.units import counted, numbered

__all__ = ["one_recording", "run_notes", "with_failure", "without_copies", "without_empty"]

_APART_NS = 600 * 10**9  # ranks of one run start within minutes, and their clocks agree better
_MINUTE_NS = 60 * 10**9


def without_copies(parts: Sequence[RankTrace]) -> tuple[list[RankTrace], list[Note]]:
    """The parts, but for those that hold the same events as one before them."""
    kept: dict[tuple[int, object, int | None], list[RankTrace]] = defaultdict(list)
    notes = []
    for part in parts:
        alike = kept[part.rank, window(part), fact(part, "events")]
        first = next((one for one in alike if same(one, part)), None)
        if first is None:
            alike.append(part)
        else:
            message = f"{part.file} holds the same events as {first.file}: left out"
            notes.append(Note("duplicate-rank", message, part.rank, str(part.file)))
    left_out = {note.file for note in notes}
    return [part for part in parts if str(part.file) not in left_out], notes


def without_empty(parts: Sequence[RankTrace]) -> tuple[list[RankTrace], list[Note]]:
    """The parts, but for those without an event, of ranks that have another file; all are noted."""
    ranks = {part.rank for part in parts if window(part)}
    kept, notes = [], []
    for part in parts:
        if window(part):
            kept.append(part)
            continue
        message = f"{part.file} has no event to analyse"
        if part.rank in ranks:
            message += f", and rank {part.rank} has another file: left out"
        else:
            ranks.add(part.rank)
            kept.append(part)
        notes.append(Note("no-events", message, part.rank, str(part.file)))
    return kept, notes


def one_recording(parts: Sequence[RankTrace]) -> tuple[list[RankTrace], list[Note]]:
    """The parts of the one recording that is there, by rank and time; single strangers left out.

    Raises TraceError where there are several recordings.
    """
    known = [part for part in parts if part.provenance != "assumed"]
    nameless = [part for part in parts if part.provenance == "assumed"] if known else []
    main, *others = recordings(known or parts)
    others += [[part] for part in nameless]
    if others and (len(main) < 2 or any(len(other) > 1 for other in others)):
        raise TraceError(_several([main, *others], nameless))
    notes = [
        Note("mixed-runs", f"{part.file} {_why(part, main)}{LEFT_OUT}", file=str(part.file))
        for (part,) in others
    ]
    return sorted(main, key=lambda part: (part.rank, window(part) or (0, 0))), notes


def run_notes(parts: Sequence[RankTrace]) -> list[Note]:
    """What the parts of a recording miss, and why they may not be of one run."""
    notes = [*_apart(parts), *_cycles(parts)]
    ranks = {part.rank for part in parts}
    world_size = max((fact(part, "world_size") or 0 for part in parts), default=0)
    if missing := set(range(world_size)) - ranks:
        message = f"no trace file for {numbered('rank', missing)} of {world_size}"
        notes.append(Note(MISSING_RANK, message))
    return notes


def with_failure(notes: Sequence[Note], manifest: Mapping[str, Any] | None) -> list[Note]:
    """The notes, and why the recording failed: the manifest's one reason for its ranks' own."""
    if manifest is None or manifest.get("status") != "failed":
        return list(notes)
    why = manifest.get("error") or "its manifest gives no reason"
    message = f"the recording failed, and holds what there was: {why}"
    return [Note(FAILED, message), *(note for note in notes if note.code != FAILED)]


def _several(found: Sequence[Sequence[RankTrace]], nameless: Sequence[RankTrace]) -> str:
    folders = [{part.file.parent for part in its} for its in found]
    names = []
    for number, its in enumerate(found):
        elsewhere = set().union(*folders[:number], *folders[number + 1 :])
        above = Path(os.path.commonpath(folders[number]))
        own = len(its) > 1 and not any(other.is_relative_to(above) for other in elsewhere)
        names.append(str(above) if own else _listed([part.file for part in its]))
    hint = f" ({nameless[0].file} has no rank: name it like rank1.json)" if nameless else ""
    return (
        f"{len(found)} recordings were given, {'; '.join(names[:3])}"
        f"{'; …' if len(names) > 3 else ''}: analyze one at a time{hint}"
    )


def _why(part: RankTrace, main: Sequence[RankTrace]) -> str:
    """What keeps a file from being of the main recording."""
    if part.provenance == "assumed":
        return "has no rank, and the other files have: name it like rank1.json if it is of their"
    sizes = {fact(one, "world_size") for one in main} - {None}
    size = fact(part, "world_size")
    if size is not None and sizes and size not in sizes:
        return f"is of another run, of {size} ranks and not of {max(s for s in sizes if s)}"
    return f"is of another run, recorded at another time than {main[0].file}"


def _cycles(parts: Sequence[RankTrace]) -> Iterable[Note]:
    its: dict[int, list[RankTrace]] = defaultdict(list)
    for part in parts:
        its[part.rank].append(part)
    several = {rank: parts for rank, parts in its.items() if len(parts) > 1}
    if several:
        first = next(iter(several.values()))
        most = max(map(len, several.values()))
        yield Note(
            "cycles",
            f"{len(several)} rank{'s have' if len(several) > 1 else ' has'} up to {most} files "
            "that follow each other, cycles of one recording: they are analysed together, as "
            f"{_listed([part.file for part in first])} of rank {first[0].rank}",
        )


def _apart(parts: Sequence[RankTrace]) -> Iterable[Note]:
    if len({part.rank for part in parts}) < len(parts):
        return
    windows = sorted((*when, part.file) for part in parts if (when := window(part)))
    end = windows[0][1] if windows else 0
    for row, (start, stop, file) in enumerate(windows):
        if start - end > _APART_NS:
            earlier = _listed([window[2] for window in windows[:row]])
            minutes = (start - end) // _MINUTE_NS
            message = f"{file} begins {counted(minutes, 'minute')} after {earlier}: different runs?"
            yield Note("mixed-runs", message, file=str(file))
        end = max(end, stop)


def _listed(files: Sequence[Path]) -> str:
    shown = ", ".join(map(str, files[:3]))
    return shown if len(files) <= 3 else f"{shown} and {len(files) - 3} more"
