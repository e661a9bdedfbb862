"""A function's result, or why there is none."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from msgspec import Struct

__all__ = ["Lost", "attempt", "place"]

_T = TypeVar("_T")
_R = TypeVar("_R")


class Lost(Struct, frozen=True):
    """Why an item has no result: its process was ``killed`` or ended, or there was a ``fault``."""

    killed: bool = False
    fault: str | None = None


def attempt(function: Callable[[_T], _R], item: _T) -> _R | Lost:
    """What the function makes of an item, or where it failed."""
    with _Caught() as caught:
        return function(item)
    return caught.lost


def place(error: BaseException) -> str:
    """What was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class _Caught:
    """Keeps where an error was raised."""

    def __init__(self) -> None:
        self.lost = Lost()

    def __enter__(self) -> _Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.lost = Lost(fault=place(error))
        return isinstance(error, Exception)
