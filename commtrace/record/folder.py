"""The folder of a recording, which is its user's alone, and the logs in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from commtrace.errors import UsageError

__all__ = ["Follower", "NewFolder", "create", "make_folder", "new_folder", "tidy_logs"]

_PROBE_POINT = b"USDT:"  # Kineto's: they tell nobody anything


@dataclass(frozen=True)
class NewFolder:
    """An empty folder for a recording, below one that was there before."""

    path: Path
    before: Path

    def discard(self) -> None:
        """Leave nothing behind of a recording that was refused."""
        shutil.rmtree(self.path)
        for folder in (self.path, *self.path.parents):
            if folder == self.before:
                break
            with contextlib.suppress(OSError):  # another recording is in it, or it has just gone
                folder.rmdir()


def create(path: Path) -> BinaryIO:
    """An empty file that only its user may read, whatever the umask."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with contextlib.suppress(OSError):  # a file system may have no such modes
        os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "wb")


def make_folder(path: Path, *, new: bool = False) -> None:
    """Make a folder, and those that are missing above it, for its user only.

    One that is there stays as it is, unless it is to be ``new``. Raises OSError.
    """
    if path.is_dir() and not new:
        return
    if not path.parent.is_dir():
        make_folder(path.parent)
    try:
        path.mkdir(0o700)
    except FileExistsError:
        if new or not path.is_dir():
            raise
    else:
        with contextlib.suppress(OSError):
            path.chmod(0o700)  # the umask may have taken more than it should


def new_folder(out: Path | None, default: Path) -> NewFolder:
    """An empty folder: the one that was named, or the first free one of the default's name.

    Raises UsageError where the named one has something in it or cannot be made.
    """
    wanted = (out or default).absolute()
    before = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
    try:
        if out is None:
            return NewFolder(_next_free(default), before)
        make_folder(out)
        if not any(out.iterdir()):
            return NewFolder(out, before)
    except OSError as error:
        folder = out or default
        raise UsageError(f"{folder}: {error.strerror}; name another folder with -o") from None
    raise UsageError(f"{out} is not empty, and nothing is overwritten; name a new folder with -o")


def tidy_logs(folder: Path) -> None:
    """Keep the logs that say something."""
    for log in folder.glob("rank*.log"):
        lines = log.read_bytes().splitlines(keepends=True)
        said = [line for line in lines if not line.startswith(_PROBE_POINT)]
        if not said:
            log.unlink()
        elif len(said) < len(lines):
            with log.open("r+b") as file:  # in place: the disk may be full
                file.write(b"".join(said))
                file.truncate()


class Follower:
    """Copies what is added to a log to stderr, whenever it is called."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0

    def __call__(self) -> None:
        """Show what is new, to the end of the last line."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
            end = max(new.rfind(b"\n"), new.rfind(b"\r")) + 1
            self._read += end
            lines = new[:end].splitlines(keepends=True)
            said = b"".join(line for line in lines if not line.startswith(_PROBE_POINT))
            sys.stderr.write(said.decode(errors="replace"))
            sys.stderr.flush()


def _next_free(folder: Path) -> Path:
    for number in count(1):
        free = folder.with_name(f"{folder.name}-{number}") if number > 1 else folder
        with contextlib.suppress(FileExistsError):
            make_folder(free, new=True)
            break
    return free
