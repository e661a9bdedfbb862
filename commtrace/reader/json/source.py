"""A trace file as blocks of decompressed bytes, as many as can be had from it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import igzip, isal_zlib

from commtrace.errors import TraceError

__all__ = ["Source", "allowed_bytes"]

BLOCK = 1 << 18  # what stays in the second-level cache is cut and decoded fastest
_PIECE = 1 << 14
_GZIP = b"\x1f\x8b"
_COMPRESSED = 16  # times: what is usual


def allowed_bytes(compressed: int) -> int:
    """How large a gzip file may become: 200 times its size, at least 1 GiB.

    Traces compress 10 to 60 times, a gzip bomb about 1000. ``COMMTRACE_MAX_BYTES``
    overrules it. Raises TraceError where that is not a number.
    """
    text = os.environ.get("COMMTRACE_MAX_BYTES")
    if text is None:
        return max(1 << 30, 200 * compressed)
    if not text.isdecimal():
        raise TraceError(f"COMMTRACE_MAX_BYTES: {text!r} is not a number of bytes")
    return int(text)


class Source:
    """Iterate once over the blocks of a file, gzip or plain, distinguished by content.

    ``read`` counts the bytes given out; ``problem`` says what stopped the reading short
    of the file's end, None if nothing did. Raises TraceError if the file cannot be
    opened, or grows beyond ``max_bytes``.
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.path = path
        self.read = 0
        self.problem: str | None = None
        try:
            with path.open("rb") as file:
                self._gzipped = file.read(2) == _GZIP
            self.size = path.stat().st_size
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
        if max_bytes is None and self._gzipped:
            max_bytes = allowed_bytes(self.size)
        self._max_bytes = max_bytes

    @property
    def likely_bytes(self) -> int:
        """About how large it is, decompressed."""
        return self.size * _COMPRESSED if self._gzipped else self.size

    def __iter__(self) -> Iterator[bytes]:
        blocks = self._compressed() if self._gzipped else self._plain()
        for block in blocks:
            self.read += len(block)
            if self._max_bytes is not None and self.read > self._max_bytes:
                raise TraceError(
                    f"{self.path}: decompresses to more than {self._max_bytes:,} bytes; "
                    "if it is not a gzip bomb, set COMMTRACE_MAX_BYTES to allow more"
                )
            yield block

    def _plain(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                while block := file.read(BLOCK):
                    yield block
        except OSError as error:
            self.problem = f"reading stopped: {error.strerror}"

    def _compressed(self) -> Iterator[bytes]:
        try:
            with igzip.open(self.path) as file:
                while block := file.read(BLOCK):
                    yield block
        except (OSError, EOFError, OverflowError, isal_zlib.error):  # type: ignore[misc]
            # Overflow: the header holds a name longer than igzip's buffer. zlib reads it.
            yield from self._remaining()

    def _remaining(self) -> Iterator[bytes]:
        # igzip throws away what it had decompressed when it met the damage: up to 256 KB.
        skip = self.read
        with self.path.open("rb") as file:
            for data in self._members(file):
                yield data[skip:]
                skip = max(0, skip - len(data))

    def _members(self, file: BinaryIO) -> Iterator[bytes]:
        engine, begun = zlib.decompressobj(wbits=31), False
        while raw := file.read(_PIECE):
            while raw:
                before = engine.copy()
                try:
                    yield engine.decompress(raw)
                except zlib.error:
                    data, used = _bytewise(before, raw)
                    yield data
                    at = file.tell() - len(raw) + used
                    self.problem = f"the gzip data is damaged at byte {at:,} of {self.size:,}"
                    return
                raw, begun = engine.unused_data.lstrip(b"\0"), not engine.eof
                if engine.eof:
                    engine = zlib.decompressobj(wbits=31)
        if begun:
            self.problem = f"the gzip data breaks off at its end, byte {self.size:,}"


def _bytewise(engine: zlib._Decompress, raw: bytes) -> tuple[bytes, int]:
    """What comes out before the damage, and how many bytes went in."""
    data = []
    for used in range(len(raw)):
        try:
            data.append(engine.decompress(raw[used : used + 1]))
        except zlib.error:
            return b"".join(data), used
    return b"".join(data), len(raw)
