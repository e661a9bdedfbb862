"""Memory that is no longer needed given back to the system, where it would be kept."""

from __future__ import annotations

import ctypes
import sys
from functools import cached_property
from typing import Any, ClassVar, TypeVar, overload
from weakref import WeakValueDictionary

__all__ = ["give_back", "keep_little", "passing"]

_T = TypeVar("_T")

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_ARRAY_BYTES = 1 << 22  # from here on numpy asks for huge pages: new memory costs little
_KEPT_BYTES = 1 << 26  # at the heap's end: what the default comes to


class passing(cached_property[_T]):  # noqa: N801 - as the decorator that it is one of
    """A cached property that is let go when memory is given back: what is soon made again.

    Many ask for it while one measure is computed, few behind that.
    """

    known: ClassVar[WeakValueDictionary[tuple[int, str | None], Any]] = WeakValueDictionary()

    @overload
    def __get__(self, its: None, owner: type | None = None) -> passing[_T]: ...

    @overload
    def __get__(self, its: object, owner: type | None = None) -> _T: ...

    def __get__(self, its: object | None, owner: type | None = None) -> passing[_T] | _T:
        """What it is of an object, which can be referred to weakly."""
        if its is not None:
            self.known[id(its), self.attrname] = its
        return super().__get__(its, owner)


def give_back() -> None:
    """Let go what is ``passing``, and give the system what lies free between what is in use."""
    for (_, name), its in list(passing.known.items()):
        its.__dict__.pop(name, None)
    passing.known.clear()
    if libc := _glibc():
        libc.malloc_trim(0)


def keep_little() -> None:
    """From now on give each large array back when nobody needs it any longer.

    The heap, which else takes in all below 32 MB once one of them was freed, would hold many
    times those in use.
    """
    if libc := _glibc():
        libc.mallopt(_MMAP_THRESHOLD, _ARRAY_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _glibc() -> Any:
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "malloc_trim") else None
