"""The folder of a recording, and the logs in it."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from commtrace.errors import UsageError

__all__ = ["Follower", "NewFolder", "new_folder", "tidy_logs"]

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


def new_folder(out: Path | None, default: Path) -> NewFolder:
    """An empty folder: the one that was named, or the first free one of the default's name.

    Raises UsageError where the named one has something in it or cannot be made.
    """
    wanted = (out or default).absolute()
    before = next(folder for folder in (wanted, *wanted.parents) if folder.exists())
    try:
        if out is None:
            return NewFolder(_next_free(default), before)
        out.mkdir(parents=True, exist_ok=True)
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
            free.mkdir(parents=True)
            break
    return free
