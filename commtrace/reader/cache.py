"""What was read of files, kept for the next time: columns as they are, in the user's cache folder.

An entry is good for one content, version and configuration. It is data alone, and held to its
checksum: one that is damaged counts as none. The folder is bounded: what was not asked for
longest goes first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from time import time
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from commtrace import __version__, config
from commtrace.diagnosis import Note
from commtrace.few_bytes import Integers, Strings
from commtrace.machine import Machine
from commtrace.packed import PackedColumns
from commtrace.table import Coded, Columns
from commtrace.trace import RankTrace

__all__ = ["MOST_BYTES", "Cached", "clear", "copies", "entries", "folder", "get", "put", "trim"]

MOST_BYTES = 2_000_000_000
"""How large the folder may become."""

_SUFFIX = ".commtrace"
_MAGIC = b"commtrace cache 3\n"
_DIGEST = 32
_ENDS = 1 << 16  # bytes of a file's head and tail
_ALIGNED = 8
# Of what reads, and of what measures it.
_SOURCES = ("", "reader/**/", "metrics/rank/", "causal/rank/")
_IN_USE_S = 3600.0

_Kept = np.ndarray[Any, Any] | Coded | Integers | Strings


class _Column(Struct, array_like=True):
    """What a column's array is: its type and length; of strings the different ones, too.

    ``base`` is that of packed integers.
    """

    dtype: str
    length: int
    names: list[str] | None = None
    base: int | None = None


_Described = dict[str, dict[str, _Column]]


class _Head(Struct):
    rank: int
    provenance: str
    notes: list[Note]
    tables: _Described
    measured: _Described
    machine: Machine | None


_head = msgspec.msgpack.Decoder(_Head)


class Cached(Struct, frozen=True):
    """An entry's file or folder, size, and when it was last asked for."""

    file: Path
    size: int
    used: float


def folder() -> Path:
    """The user's own: in ``XDG_CACHE_HOME``, else in ``~/.cache``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(home).is_absolute():  # as its specification has it
        home = os.path.expanduser("~/.cache")  # noqa: PTH111 - Path's fails without a home
    return Path(home, "commtrace")


def copies() -> Path:
    """Where copies of remote files lie, a folder for those of each path."""
    return folder() / "copies"


def get(file: Path, otherwise: tuple[int, str]) -> RankTrace | None:
    """What was read of a file, if it is there and whole."""
    with suppress(OSError):
        entry = _entry(file, otherwise)
        text = entry.read_bytes()
        found = _unpacked(file, text)
        if found is not None:
            os.utime(entry)
        return found
    return None


def put(part: RankTrace, otherwise: tuple[int, str]) -> None:
    """Keep what was read; where that is impossible, nothing is kept."""
    with suppress(OSError, UnicodeError):  # a name can be of bytes that are no text
        entry = _entry(part.file, otherwise)
        if not entry.is_absolute():
            return  # the user has no home
        entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = entry.with_suffix(f".{os.getpid()}.part")
        try:
            begun.write_bytes(_packed(part))
            begun.replace(entry)
        finally:
            begun.unlink(missing_ok=True)


def entries() -> list[Cached]:
    """All that is kept, what was not asked for longest first."""
    found = []
    for file in (*folder().glob(f"*{_SUFFIX}"), *copies().glob("*")):
        with suppress(OSError):  # another process removed it
            its = file.stat()
            found.append(Cached(file, _size(file), its.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def _size(entry: Path) -> int:
    return sum(file.stat().st_size for file in (entry, *entry.rglob("*")) if file.is_file())


def trim(most_bytes: int = MOST_BYTES) -> None:
    """Remove what was not asked for longest, until the rest is small enough.

    Copies that may be in use stay, unless nothing is to be left.
    """
    kept = entries()
    over = sum(entry.size for entry in kept) - most_bytes
    for entry in kept:
        if over <= 0:
            break
        is_copy = entry.file.parent == copies()
        if is_copy and most_bytes and entry.used > time() - _IN_USE_S:
            continue
        over -= entry.size
        if is_copy:
            from shutil import rmtree  # which few runs need

            rmtree(entry.file, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.file.unlink(missing_ok=True)


def clear() -> None:
    """Remove all."""
    trim(0)


def _entry(file: Path, otherwise: tuple[int, str]) -> Path:
    """Where a file's entry lies. Raises OSError where the file cannot be read."""
    its = file.stat()
    with file.open("rb") as content:
        head = content.read(_ENDS)
        content.seek(max(0, its.st_size - _ENDS))
        tail = content.read(_ENDS)
    from hashlib import blake2b

    key = blake2b(digest_size=20)
    for part in (_reader(), str(file), otherwise, its.st_size, its.st_mtime_ns, head, tail):
        text = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogateescape")
        key.update(b"%d:" % len(text) + text)
    return folder() / f"{key.hexdigest()}{_SUFFIX}"


@lru_cache(maxsize=1)
def _reader() -> str:
    """What reads: the version, its files as they are, and the user's configuration."""
    home = Path(__file__).parents[1]
    sources = sorted(its for folder in _SOURCES for its in home.glob(f"{folder}*.py"))
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sources]
    patterns = [(its.pattern, operation) for its, operation in config.kernel_patterns()]
    return repr((__version__, states, patterns))


def _packed(part: RankTrace) -> bytes:
    columns = [*_arrays(part.columns), *_arrays(part.measured)]
    head = _Head(
        part.rank,
        part.provenance,
        list(part.notes),
        _described(part.columns),
        _described(part.measured),
        part.machine,
    )
    text = msgspec.msgpack.encode(head)
    body = b"".join((len(text).to_bytes(8, "little"), _padded(text), *map(_padded, columns)))
    return _MAGIC + _checksum(body) + body


def _checksum(body: bytes | memoryview) -> bytes:
    from hashlib import blake2b  # which loads OpenSSL: not for who uses no cache

    return blake2b(body, digest_size=_DIGEST).digest()


def _described(tables: Mapping[str, Columns]) -> _Described:
    return {
        table: {name: _column(its) for name, its in _as_kept(columns).items()}
        for table, columns in tables.items()
    }


def _as_kept(columns: Columns) -> Mapping[str, _Kept]:
    return columns.packed if isinstance(columns, PackedColumns) else columns


def _column(values: _Kept) -> _Column:
    array = _array(values)
    return _Column(
        array.dtype.str,
        array.size,
        list(values.names) if isinstance(values, Coded | Strings) else None,
        values.base if isinstance(values, Integers) else None,
    )


def _array(values: _Kept) -> np.ndarray[Any, Any]:
    if isinstance(values, Integers):
        return values.above
    return values.codes if isinstance(values, Coded | Strings) else values


def _arrays(tables: Mapping[str, Columns]) -> Iterator[bytes]:
    for columns in tables.values():
        for values in _as_kept(columns).values():
            yield _array(values).tobytes()


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % _ALIGNED)


def _unpacked(file: Path, text: bytes) -> RankTrace | None:
    body = memoryview(text)[len(_MAGIC) + _DIGEST :]
    said = text[len(_MAGIC) : len(_MAGIC) + _DIGEST]
    if not text.startswith(_MAGIC) or _checksum(body) != said:
        return None
    length = int.from_bytes(body[:8], "little")
    head = _head.decode(body[8 : 8 + length])
    at = 8 + length + -length % _ALIGNED
    tables, at = _tables(head.tables, body, at)
    measured, _ = _tables(head.measured, body, at)
    return RankTrace(
        file, head.rank, head.provenance, tables, tuple(head.notes), head.machine, measured
    )


def _tables(described: _Described, body: memoryview, at: int) -> tuple[dict[str, Columns], int]:
    """The tables that begin at a place, and where they end."""
    tables: dict[str, Columns] = {}
    for table, columns in described.items():
        packed = any(column.base is not None for column in columns.values())
        made: dict[str, Any] = {}
        for name, column in columns.items():
            # A copy: it would hold all that lies beside it.
            values = np.frombuffer(body, column.dtype, column.length, at).copy()
            at += values.nbytes + -values.nbytes % _ALIGNED
            made[name] = _as_made(column, values, packed=packed)
        tables[table] = PackedColumns(made) if packed else made
    return tables, at


def _as_made(column: _Column, values: np.ndarray[Any, Any], *, packed: bool) -> _Kept:
    if column.names is not None:
        return (Strings if packed else Coded)(values, tuple(column.names))
    return values if column.base is None else Integers(column.base, values)
