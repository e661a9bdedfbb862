"""Files into one run: whose ranks they are, and whether they belong together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from commtrace.reader.workers import Part
from commtrace.schema import NULL, Note
from commtrace.wording import counted

__all__ = ["one_per_rank", "run_notes"]

_APART_NS = 600 * 10**9  # ranks of one run start within minutes, and their clocks agree better


def one_per_rank(parts: Sequence[Part]) -> tuple[list[Part], list[Note]]:
    """The parts in the order of their ranks; of several for one rank, the first."""
    kept: dict[int, Part] = {}
    notes = []
    for part in parts:
        first = kept.setdefault(part.rank, part)
        if first is not part:
            if part.told:
                message = f"{part.file} is of rank {part.rank} like {first.file}: not analysed"
            else:
                message = (
                    f"{part.file} tells no rank, and {first.file} is taken for rank {part.rank}: "
                    "not analysed; put the rank in its name, like rank1.json"
                )
            notes.append(Note("duplicate-rank", message, part.rank, str(part.file)))
    return [kept[rank] for rank in sorted(kept)], notes


def run_notes(parts: Sequence[Part]) -> list[Note]:
    """What the parts, one per rank, miss of a run, and why they may not be of one."""
    sizes: dict[int, list[Path]] = defaultdict(list)
    for part in parts:
        if (size := _told(part, "world_size")) is not None:
            sizes[size].append(part.file)
    notes = []
    if len(sizes) > 1:
        told = "; ".join(f"{size} in {_listed(files)}" for size, files in sorted(sizes.items()))
        notes.append(Note("mixed-runs", f"the files are of different runs: world size {told}"))
    notes += _apart(parts)
    missing = set(range(max(sizes, default=0))) - {part.rank for part in parts}
    if missing:
        ranks = "rank" if len(missing) == 1 else "ranks"
        message = f"no trace of {ranks} {_ranges(missing)}, of {max(sizes)}"
        notes.append(Note("missing-rank", message))
    return notes


def _told(part: Part, column: str) -> int | None:
    values = part.columns["ranks"][column]
    value = int(values[0])  # type: ignore[index]
    return None if value == NULL else value


def _apart(parts: Sequence[Part]) -> Iterable[Note]:
    windows = []
    for part in parts:
        start, end = _told(part, "start_ns"), _told(part, "end_ns")
        if start is not None and end is not None:
            windows.append((start, end, part.file))
    windows.sort()
    end = windows[0][1] if windows else 0
    for row, (start, stop, file) in enumerate(windows):
        if start - end > _APART_NS:
            earlier = _listed([window[2] for window in windows[:row]])
            minutes = (start - end) // (60 * 10**9)
            message = f"{file} begins {counted(minutes, 'minute')} after {earlier}: different runs?"
            yield Note("mixed-runs", message, file=str(file))
        end = max(end, stop)


def _listed(files: Sequence[Path]) -> str:
    shown = ", ".join(map(str, files[:3]))
    return shown if len(files) <= 3 else f"{shown} and {len(files) - 3} more"


def _ranges(numbers: Iterable[int]) -> str:
    """``0, 4–7``."""
    runs = groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in ends)
