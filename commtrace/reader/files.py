"""Which files a path means."""

from __future__ import annotations

import glob
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from commtrace.errors import TraceError
from commtrace.reader.names import natural

__all__ = ["NOT_TRACES", "SUFFIXES", "find"]

NOT_TRACES = ("manifest.json", "expected.json")
"""What lies beside the traces of a recording."""

SUFFIXES = (".json", ".json.gz")
"""What the name of a trace in a folder ends in."""

_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z")
_ZIP, _GZIP, _TAR, _TAR_AT = b"PK\x03\x04", b"\x1f\x8b", b"ustar", 257


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
    return sorted(found.values(), key=natural)


def _meant(path: Path) -> Iterable[Path]:
    try:
        if path.is_dir():
            return _inside(path)
        if path.is_file():
            if _is_archive(path):
                raise TraceError(f"{path}: is an archive: unpack it and name the folder")
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
    not_meant = match.name in NOT_TRACES or match.name.endswith(_ARCHIVES)
    return [match] if not not_meant and match.is_file() else []


def _inside(folder: Path) -> list[Path]:
    files = list(_candidates(folder))
    if not files:
        archive = next((file for file in folder.iterdir() if file.name.endswith(_ARCHIVES)), None)
        if archive is not None:
            raise TraceError(f"{folder}: holds no trace but an archive: unpack {archive.name}")
        if why := _failure(folder / NOT_TRACES[0]):
            raise TraceError(f"{folder}: holds no trace, as the recording failed: {why}")
        raise TraceError(
            f"{folder}: holds no .json or .json.gz file: name the folder that the profiler wrote to"
        )
    return files


def _failure(manifest: Path) -> str | None:
    """Why a recording has no trace, if it says so."""
    try:
        content = json.loads(manifest.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content.get("error") if isinstance(content, dict) else None


def _candidates(folder: Path) -> Iterator[Path]:
    for home, _, names in os.walk(folder, onerror=_refuse):
        files = (Path(home, name) for name in names)
        yield from (file for file in files if _is_candidate(file))


def _is_archive(file: Path) -> bool:
    if file.name.endswith(_ARCHIVES):
        return True
    try:
        with file.open("rb") as plain:
            start = plain.read(512)
        if start.startswith(_GZIP):
            start = zlib.decompressobj(wbits=31).decompress(start, 512)
    except (OSError, zlib.error):
        return False  # whoever reads it will say so
    return start.startswith(_ZIP) or start[_TAR_AT:].startswith(_TAR)


def _refuse(error: OSError) -> None:
    why = f"{error.filename}: cannot be read: {error.strerror}"
    raise TraceError(f"{why}: make it readable, or name the files to analyse") from None


def _is_candidate(file: Path) -> bool:
    return file.name.endswith(SUFFIXES) and file.name not in NOT_TRACES and file.is_file()
