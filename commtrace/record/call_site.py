"""Where in a program an operation was called: the lines of a Python stack that say it."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["call_site", "is_own"]

_RECORDS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_PATHS = sysconfig.get_paths()
_PYTHON = (_PATHS["stdlib"], _PATHS["platstdlib"])  # which libraries may lie in
_LIBRARIES = tuple(dict.fromkeys((_PATHS["purelib"], _PATHS["platlib"])))
_DEPRECATED = "typing_extensions.py"  # whose decorator torch's deprecated functions wear


def call_site(frames: Sequence[Mapping[str, Any]]) -> str | None:
    """The program's own line that led to a call, and the library's that made it, if one did.

    ``frames`` are those of the flight recorder, innermost first: ``filename``, ``line`` and
    ``name`` (of the function). None where torch called by itself, as from another thread.
    """
    ours = [frame for frame in frames if _is_of_a_program(str(frame["filename"]))]
    own = next((frame for frame in ours if is_own(str(frame["filename"]))), None)
    if own is None:
        return _line(ours) if ours else None
    line = _line(ours[ours.index(own) :])
    return line if own is ours[0] else f"{line}, by {_line(ours)}"


def _line(frames: Sequence[Mapping[str, Any]]) -> str:
    """The first one's, with the function that it is in: of a comprehension that around it."""
    file = frames[0]["filename"]
    names = (str(frame["name"]) for frame in frames if frame["filename"] == file)
    function = next((name for name in names if not name.startswith("<")), None)
    within = f" in {function}" if function else ""
    return f"{_short(str(file))}:{frames[0]['line']}{within}"


def is_own(file: str) -> bool:
    """Whether it is the program's own, and of no library."""
    return _is_of_a_program(file) and not _is_library(file)


@lru_cache
def _is_of_a_program(file: str) -> bool:
    """Whether neither torch nor Python or this recorder made the call."""
    if file.startswith("<") or _is_in(file, _RECORDS) or _short(file) == _DEPRECATED:
        return False
    return _is_library(file) or not _is_in(file, _PYTHON)


def _is_library(file: str) -> bool:
    return _is_in(file, _LIBRARIES)


@lru_cache
def _short(file: str) -> str:
    """A path as people know it: from the current folder on, or from that of all libraries."""
    for folder in (*_LIBRARIES, str(Path.cwd())):
        if _is_in(file, (folder,)):
            return os.path.relpath(file, folder)
    return Path(file).name


def _is_in(file: str, folders: tuple[str, ...]) -> bool:
    return file.startswith(tuple(folder + os.sep for folder in folders))
