"""Which files a path means."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from commtrace.errors import TraceError

__all__ = ["NOT_TRACES", "find"]

NOT_TRACES = ("manifest.json", "expected.json")
"""What lies beside the traces of a recording."""

_SUFFIXES = (".json", ".json.gz")


def find(paths: Sequence[str | Path]) -> list[Path]:
    """The trace files that some files, folders and glob patterns mean.

    A file is meant whatever its name; of a folder, every ``.json`` and ``.json.gz`` within
    it at any depth, but for ``NOT_TRACES``. Each once, in natural order: ``rank2`` before
    ``rank10``. Raises TraceError where a path leads to nothing.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        for file in _meant(Path(path)):
            found.setdefault(file.resolve(), file)
    if not found:
        raise TraceError("no trace was given: name a file, a folder or a pattern")
    return sorted(found.values(), key=_natural)


def _meant(path: Path) -> Iterable[Path]:
    try:
        if path.is_dir():
            return _inside(path)
        if path.exists():
            return [path]
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    if not matches:
        raise TraceError(f"{path}: does not exist: name a trace file or a folder of them")
    return [file for match in sorted(matches) for file in _matched(match)]


def _matched(match: Path) -> list[Path]:
    if match.is_dir():
        return [file for file in match.rglob("*") if _is_candidate(file)]
    return [match] if match.name not in NOT_TRACES else []


def _inside(folder: Path) -> list[Path]:
    files = [file for file in folder.rglob("*") if _is_candidate(file)]
    if not files:
        raise TraceError(
            f"{folder}: holds no .json or .json.gz file: name the folder that the profiler wrote to"
        )
    return files


def _is_candidate(file: Path) -> bool:
    return file.name.endswith(_SUFFIXES) and file.name not in NOT_TRACES and file.is_file()


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
