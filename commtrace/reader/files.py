"""Which files a path means."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
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
    if "" in paths:
        raise TraceError("an empty path was given: name a file, a folder or a pattern")
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
        if path.is_file():
            return [path]
        there = path.exists()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    if there:
        raise TraceError(f"{path}: is no file but a pipe or a device: write it to a file first")
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    if not matches:
        raise TraceError(f"{path}: does not exist: name a trace file or a folder of them")
    files = [file for match in sorted(matches) for file in _matched(match)]
    if not files:
        raise TraceError(f"{path}: matches no trace: name a trace file or a folder of them")
    return files


def _matched(match: Path) -> list[Path]:
    if match.is_dir():
        return list(_candidates(match))
    return [match] if match.name not in NOT_TRACES and match.is_file() else []


def _inside(folder: Path) -> list[Path]:
    files = list(_candidates(folder))
    if not files:
        raise TraceError(
            f"{folder}: holds no .json or .json.gz file: name the folder that the profiler wrote to"
        )
    return files


def _candidates(folder: Path) -> Iterator[Path]:
    for home, _, names in os.walk(folder, onerror=_refuse):
        files = (Path(home, name) for name in names)
        yield from (file for file in files if _is_candidate(file))


def _refuse(error: OSError) -> None:
    why = f"{error.filename}: cannot be read: {error.strerror}"
    raise TraceError(f"{why}: make it readable, or name the files to analyse") from None


def _is_candidate(file: Path) -> bool:
    return file.name.endswith(_SUFFIXES) and file.name not in NOT_TRACES and file.is_file()


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
